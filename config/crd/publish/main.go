package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// embedded are the paths of types that Kubernetes describes, below a version's schema.
var embedded = [][]string{
	{"spec", "pod", "tolerations"},
	{"spec", "pod", "affinity"},
	{"spec", "pod", "topologySpreadConstraints"},
}

func main() {
	from := flag.String("from", "", "folder with the CRDs that controller-gen wrote")
	crds := flag.String("crds", "config/crd", "folder for the plain CRDs")
	chart := flag.String("chart", "charts/execsession/templates/crds", "folder for the chart's templates")
	flag.Parse()
	if err := publish(*from, *crds, *chart); err != nil {
		fmt.Fprintln(os.Stderr, "publish:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func publish(from, crds, chart string) error {
	files, err := filepath.Glob(filepath.Join(from, "*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("finding CRDs in %q: %d files: %w", from, len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		plain, err := trim(data)
		if err != nil {
			return fmt.Errorf("trimming %q: %w", file, err)
		}
		name := filepath.Base(file)
		if err := write(filepath.Join(crds, name), plain); err != nil {
			return err
		}
		template, err := asTemplate(plain)
		if err != nil {
			return fmt.Errorf("making a template of %q: %w", file, err)
		}
		if err := write(filepath.Join(chart, name), template); err != nil {
			return err
		}
	}
	return nil
}

func write(file string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644) //nolint:gosec // the caller says where, and everybody may read the repository
}

// trim removes descriptions below the embedded types; that of the field itself stays.
func trim(data []byte) ([]byte, error) {
	var crd map[string]any
	if err := yaml.Unmarshal(data, &crd); err != nil {
		return nil, err
	}
	spec, _ := crd["spec"].(map[string]any)
	versions, _ := spec["versions"].([]any)
	for _, v := range versions {
		schema := dig(v, "schema", "openAPIV3Schema")
		for _, path := range embedded {
			if field := property(schema, path); field != nil {
				own := field["description"]
				strip(field)
				field["description"] = own
			}
		}
	}
	return yaml.Marshal(crd)
}

func dig(value any, path ...string) map[string]any {
	for _, key := range path {
		m, _ := value.(map[string]any)
		value = m[key]
	}
	m, _ := value.(map[string]any)
	return m
}

func property(schema map[string]any, path []string) map[string]any {
	for _, name := range path {
		schema = dig(schema, "properties", name)
	}
	return schema
}

// strip removes descriptions, but not a property that is called "description".
func strip(value any) {
	switch v := value.(type) {
	case map[string]any:
		if _, isText := v["description"].(string); isText {
			delete(v, "description")
		}
		for _, child := range v {
			strip(child)
		}
	case []any:
		for _, child := range v {
			strip(child)
		}
	}
}

// asTemplate puts the chart's switches around a CRD.
func asTemplate(plain []byte) ([]byte, error) {
	if bytes.Contains(plain, []byte("{{")) {
		return nil, fmt.Errorf("the CRD contains %q, which Helm would take for its own", "{{")
	}
	const mark = "\n  annotations:\n"
	text := string(plain)
	if strings.Count(text, mark) != 1 {
		return nil, fmt.Errorf("the CRD has no single %q", strings.TrimSpace(mark))
	}
	text = strings.Replace(text, mark, mark+"    {{- if .Values.crds.keep }}\n    helm.sh/resource-policy: keep\n    {{- end }}\n", 1)
	return []byte("{{- if .Values.crds.install }}\n" + text + "{{- end }}\n"), nil
}

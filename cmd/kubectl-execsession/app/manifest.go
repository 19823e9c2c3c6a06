package app

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	strict "k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"execsession.dev/api/v1alpha1"
)

// quantities are the fields whose decoder does not say which field it is about.
var quantities = [][]string{
	{"spec", "workspace", "storage", "size"},
	{"spec", "pod", "resources", "limits"},
	{"spec", "pod", "resources", "requests"},
}

// manifest reads -f.
func (f *createFlags) manifest(p *plugin, args []string) (*v1alpha1.ExecSession, error) {
	data, err := p.readManifest(f.file)
	if err != nil {
		return nil, fmt.Errorf("reading the manifest: %w", err)
	}
	session, err := decodeManifest(data)
	if err != nil {
		return nil, fmt.Errorf("manifest %q: %w", f.file, err)
	}
	if len(args) == 1 && session.Name != "" && session.Name != args[0] {
		return nil, fmt.Errorf("manifest %q: metadata.name %q: the command line names session %q", f.file, session.Name, args[0])
	}
	if len(args) == 1 {
		session.Name = args[0]
	}
	if session.Name == "" {
		return nil, fmt.Errorf("manifest %q: metadata.name is missing", f.file)
	}
	return session, nil
}

func (p *plugin) readManifest(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(io.LimitReader(p.In, maxArguments))
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, maxArguments))
}

// decodeManifest is strict: a field that sessions do not have is an error here, not a
// silence in the cluster. Its errors name the field.
func decodeManifest(data []byte) (*v1alpha1.ExecSession, error) {
	document, object, err := onlyDocument(data)
	if err != nil {
		return nil, err
	}
	given := unstructured.Unstructured{Object: object}
	if got, want := given.GetAPIVersion(), v1alpha1.GroupVersion.String(); got != want {
		return nil, fmt.Errorf("apiVersion %q: must be %q", got, want)
	}
	if got := given.GetKind(); got != "ExecSession" {
		return nil, fmt.Errorf("kind %q: must be %q", got, "ExecSession")
	}
	if err := checkQuantities(object); err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("preparing to read: %w", err)
	}
	session := &v1alpha1.ExecSession{}
	decoder := strict.NewSerializerWithOptions(strict.DefaultMetaFactory, scheme, scheme, strict.SerializerOptions{Yaml: true, Strict: true})
	if _, _, err := decoder.Decode(document, nil, session); err != nil {
		return nil, errors.New(decodingError(err))
	}
	session.TypeMeta = metav1.TypeMeta{}
	return session, nil
}

// onlyDocument passes over documents that hold nothing but comments.
func onlyDocument(data []byte) (document []byte, object map[string]any, err error) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		next, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return document, object, nil
		}
		if err != nil {
			return nil, nil, err
		}
		var fields map[string]any
		if err := yaml.Unmarshal(next, &fields); err != nil {
			return nil, nil, errors.New(decodingError(err))
		}
		if fields != nil && object != nil {
			return nil, nil, errors.New("more than one document; give one session")
		}
		if fields != nil {
			document, object = next, fields
		}
	}
}

// decodingError leaves out what only the decoders' authors understand.
func decodingError(err error) string {
	var mistyped *json.UnmarshalTypeError
	if errors.As(err, &mistyped) && mistyped.Field != "" {
		return fmt.Sprintf("field %q: a value of type %s is not allowed there", mistyped.Field, mistyped.Value)
	}
	if errors.As(err, &mistyped) {
		return fmt.Sprintf("a value of type %s: must be an object", mistyped.Value)
	}
	message := err.Error()
	for _, noise := range []string{"strict decoding error: ", "error converting YAML to JSON: ", "yaml: unmarshal errors:\n "} {
		message = strings.ReplaceAll(message, noise, "")
	}
	return message
}

func checkQuantities(object map[string]any) error {
	for _, path := range quantities {
		found, ok, err := unstructured.NestedFieldNoCopy(object, path...)
		if err != nil || !ok {
			continue // Decoding will tell what is wrong with its place.
		}
		values, many := found.(map[string]any)
		if !many {
			values = map[string]any{"": found}
		}
		for name, value := range values {
			text, isText := value.(string)
			if !isText {
				continue
			}
			if _, err := resource.ParseQuantity(text); err != nil {
				field := strings.TrimSuffix(strings.Join(path, ".")+"."+name, ".")
				return fmt.Errorf("field %q: value %q: must be a quantity such as 10Gi", field, text)
			}
		}
	}
	return nil
}

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// buildPause compiles the program of the pause image and returns it.
func buildPause(ctx context.Context, checkout string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "pause")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", dir+"/pause", "./hack/cluster/pause")
	cmd.Dir = checkout
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the pause image: %w: %s", err, lastLines(string(text), 10))
	}
	return os.ReadFile(filepath.Join(dir, "pause"))
}

// imageArchive is an OCI archive of an image that consists of one program. It is written here and not by hack/images
// because the cluster has to boot before anything else of the repository needs to build.
func imageArchive(reference, program string, content []byte) ([]byte, error) {
	layer, err := tarball([]tarEntry{{name: program, content: content, mode: 0o755}})
	if err != nil {
		return nil, err
	}
	blobs := map[string][]byte{}
	add := func(mediaType string, content []byte) map[string]any {
		digest := sha256Hex(content)
		blobs["blobs/sha256/"+digest] = content
		return map[string]any{"mediaType": mediaType, "digest": "sha256:" + digest, "size": len(content)}
	}
	layerDescriptor := add("application/vnd.oci.image.layer.v1.tar", layer)
	config := add("application/vnd.oci.image.config.v1+json", mustJSON(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/" + program}, "User": "65535:65535"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []any{layerDescriptor["digest"]}},
	}))
	manifest := add("application/vnd.oci.image.manifest.v1+json", mustJSON(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []any{layerDescriptor},
	}))
	manifest["annotations"] = map[string]string{"io.containerd.image.name": reference}
	entries := []tarEntry{
		{name: "oci-layout", content: mustJSON(map[string]string{"imageLayoutVersion": "1.0.0"}), mode: 0o644},
		{name: "index.json", content: mustJSON(map[string]any{"schemaVersion": 2, "manifests": []any{manifest}}), mode: 0o644},
	}
	for name, content := range blobs {
		entries = append(entries, tarEntry{name: name, content: content, mode: 0o644})
	}
	return tarball(entries)
}

// tarEntry is a file of an archive.
type tarEntry struct {
	name    string
	content []byte
	mode    int64
}

func tarball(entries []tarEntry) ([]byte, error) {
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.content)), Typeflag: tar.TypeReg}
		if err := archive.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("writing an image: %w", err)
		}
		if _, err := archive.Write(e.content); err != nil {
			return nil, fmt.Errorf("writing an image: %w", err)
		}
	}
	if err := archive.Close(); err != nil {
		return nil, fmt.Errorf("writing an image: %w", err)
	}
	return buffer.Bytes(), nil
}

func sha256Hex(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// mustJSON encodes what is built from maps of strings and numbers, which always can be.
func mustJSON(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return text
}

// loadImages imports image archives into the node, where pods find them under the names written inside. The program
// ctr comes with the running cluster, so this needs nothing from the cache.
func loadImages(ctx context.Context, l layout, archives []string) error {
	for _, archive := range archives {
		err := run(ctx, filepath.Join(l.Bin, "ctr"), "--address="+l.ContainerdSocket, "--namespace=k8s.io", "images", "import", archive)
		if err != nil {
			return fmt.Errorf("loading %s: %w", archive, err)
		}
	}
	return nil
}

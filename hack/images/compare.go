package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// summary is what decides how an image runs, apart from the bytes of its programs.
type summary struct {
	entrypoint, cmd  []string
	user, workingDir string
	env              []string
	files            []string // mode, owner and name of everything that is not a folder
}

// compare says what differs between the images of two archives.
func compare(first, second string, stdout io.Writer) error {
	a, err := summarise(first)
	if err != nil {
		return fmt.Errorf("reading %s: %w", first, err)
	}
	b, err := summarise(second)
	if err != nil {
		return fmt.Errorf("reading %s: %w", second, err)
	}
	if err := a.differences(b); err != nil {
		return fmt.Errorf("%s and %s differ: %w", first, second, err)
	}
	_, err = fmt.Fprintf(stdout, "%s and %s run alike: %s as %s, files %s\n", first, second,
		strings.Join(a.entrypoint, " "), a.user, strings.Join(a.files, ", "))
	return err
}

func (a summary) differences(b summary) error {
	var problems []error
	for name, values := range map[string][2][]string{
		"entrypoint":  {a.entrypoint, b.entrypoint},
		"command":     {a.cmd, b.cmd},
		"user":        {{a.user}, {b.user}},
		"folder":      {{a.workingDir}, {b.workingDir}},
		"environment": {a.env, b.env},
		"files":       {a.files, b.files},
	} {
		if !slices.Equal(values[0], values[1]) {
			problems = append(problems, fmt.Errorf("%s %q and %q", name, values[0], values[1]))
		}
	}
	return errors.Join(problems...)
}

func summarise(archive string) (summary, error) {
	img, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		return summary{}, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return summary{}, err
	}
	files, err := listFiles(img)
	if err != nil {
		return summary{}, err
	}
	s := summary{
		entrypoint: config.Config.Entrypoint, cmd: config.Config.Cmd,
		user: config.Config.User, workingDir: config.Config.WorkingDir,
		env: config.Config.Env, files: files,
	}
	if s.workingDir == "" {
		s.workingDir = "/"
	}
	return s, nil
}

func listFiles(img v1.Image) ([]string, error) {
	content := mutate.Extract(img)
	defer func() { _ = content.Close() }()
	var files []string
	for archive := tar.NewReader(content); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(files)
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if header.Typeflag == tar.TypeDir {
			continue
		}
		files = append(files, fmt.Sprintf("%04o %d:%d /%s", header.Mode&0o7777, header.Uid, header.Gid, strings.TrimPrefix(header.Name, "/")))
	}
}

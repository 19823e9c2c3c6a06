package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// epoch is the time of everything in an image.
var epoch = time.Unix(0, 0).UTC()

// image is an image of one layer, as a value.
type image struct {
	name   string
	config v1.Config
	layer  *layer
}

// layer is a file system in the order in which it was put together. Everything belongs to root: who may use it is
// decided by modes alone, so that any uid can run the image.
type layer struct {
	buffer bytes.Buffer
	tar    *tar.Writer
	err    error // the first; add calls after it do nothing
}

func newLayer() *layer {
	l := &layer{}
	l.tar = tar.NewWriter(&l.buffer)
	return l
}

// entry adds a header and content.
func (l *layer) entry(header tar.Header, content io.Reader) {
	if l.err != nil {
		return
	}
	header.ModTime, header.Format = epoch, tar.FormatPAX
	if l.err = l.tar.WriteHeader(&header); l.err != nil || content == nil {
		return
	}
	_, l.err = io.Copy(l.tar, content)
}

func (l *layer) dir(name string, mode int64) {
	l.entry(tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}, nil)
}

func (l *layer) link(name, target string) {
	l.entry(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, nil)
}

func (l *layer) text(name, content string) {
	l.entry(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}, strings.NewReader(content))
}

// file adds a file of this machine.
func (l *layer) file(name, source string, mode int64) {
	if l.err != nil {
		return
	}
	file, err := os.Open(source) //nolint:gosec // the caller names what goes in
	if err != nil {
		l.err = err
		return
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		l.err = err
		return
	}
	l.entry(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: info.Size()}, file)
}

// tree adds a folder of this machine with everything in it, except what skip names.
func (l *layer) tree(name, source string, skip func(relative string) bool) {
	err := filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		target := filepath.ToSlash(filepath.Join(name, relative))
		switch {
		case skip(relative) && entry.IsDir():
			return filepath.SkipDir
		case skip(relative):
		case entry.IsDir():
			l.dir(target, 0o755)
		case entry.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			l.link(target, link)
		case entry.Type().IsRegular():
			info, err := entry.Info()
			if err != nil {
				return err
			}
			l.file(target, path, int64(info.Mode().Perm()))
		}
		return l.err
	})
	if l.err == nil {
		l.err = err
	}
}

// build turns the value into an image as registries know it.
func (i *image) build() (v1.Image, error) {
	if err := i.layer.tar.Close(); i.layer.err == nil {
		i.layer.err = err
	}
	if i.layer.err != nil {
		return nil, fmt.Errorf("writing the layer: %w", i.layer.err)
	}
	content := i.layer.buffer.Bytes()
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
	// Archives live on one machine; time matters and size does not.
	l, err := tarball.LayerFromOpener(open, tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		return nil, fmt.Errorf("compressing the layer: %w", err)
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return nil, fmt.Errorf("adding the layer: %w", err)
	}
	return mutate.ConfigFile(img, &v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux",
		Created: v1.Time{Time: epoch},
		Config:  i.config,
		RootFS:  mustRootFS(img),
	})
}

// mustRootFS is the list of layers of an image that was made here, which has one.
func mustRootFS(img v1.Image) v1.RootFS {
	config, err := img.ConfigFile()
	if err != nil {
		panic(err)
	}
	return config.RootFS
}

// write replaces the archive, whole or not at all.
func (i *image) write(archive string) error {
	img, err := i.build()
	if err != nil {
		return err
	}
	tag, err := name.NewTag(i.name)
	if err != nil {
		return fmt.Errorf("naming the image: %w", err)
	}
	temp := archive + ".new"
	if err := tarball.WriteToFile(temp, tag, img); err != nil {
		return err
	}
	return os.Rename(temp, archive) //nolint:gosec // the caller names the archive
}

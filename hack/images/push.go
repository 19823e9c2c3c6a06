package main

import (
	"context"
	"fmt"
	"io"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// push uploads the image of an archive to a registry under another name, with the credentials that docker would use.
func push(ctx context.Context, archive, reference string, stdout io.Writer) error {
	img, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		return fmt.Errorf("reading %s: %w", archive, err)
	}
	target, err := name.ParseReference(reference)
	if err != nil {
		return fmt.Errorf("parsing the image's name: %w", err)
	}
	if err := remote.Write(target, img, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return fmt.Errorf("pushing %s: %w", reference, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return fmt.Errorf("pushing %s: %w", reference, err)
	}
	_, err = fmt.Fprintf(stdout, "%s: pushed as %s@%s\n", archive, reference, digest)
	return err
}

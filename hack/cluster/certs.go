package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// makeCertificates lets kubeadm make every key, certificate and kubeconfig, so that none is made by hand.
func makeCertificates(ctx context.Context, l layout) error {
	kubeadm, config := filepath.Join(l.Bin, "kubeadm"), filepath.Join(l.Config, "kubeadm.yaml")
	if err := run(ctx, kubeadm, "init", "phase", "certs", "all", "--config="+config); err != nil {
		return fmt.Errorf("making certificates: %w", err)
	}
	if err := run(ctx, kubeadm, "init", "phase", "kubeconfig", "all", "--config="+config, "--kubeconfig-dir="+l.Kube); err != nil {
		return fmt.Errorf("making kubeconfigs: %w", err)
	}
	for name, user := range identities {
		text, err := output(ctx, nil, kubeadm, "kubeconfig", "user", "--config="+config, "--client-name="+user)
		if err != nil {
			return fmt.Errorf("making %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(l.Kube, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("making %s: %w", name, err)
		}
	}
	return nil
}

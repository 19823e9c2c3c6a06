package main

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"text/template"
)

// configFiles are the templates of what the components are configured with, and of the objects they need.
//
//go:embed config
var configFiles embed.FS

// plan is the whole cluster as a value.
type plan struct {
	layout    layout
	files     map[string][]byte // by path below the config folder
	objects   []byte            // applied once the API server is ready
	processes []planned         // in the order in which they start
}

// planned is a process to run: the binary and its arguments, the ports it takes, and where it says that it is well.
type planned struct {
	Name    string
	Argv    []string
	Listens []listen
	Health  string // URL; empty if running is all there is to know
}

// identities are the kubeconfigs of components that kubeadm makes none for, and the users they name.
var identities = map[string]string{
	"kube-proxy.conf":  "system:kube-proxy",
	"kube-router.conf": "cluster:kube-router",
	"coredns.conf":     "cluster:coredns",
	"provisioner.conf": "cluster:provisioner",
}

func newPlan(l layout) (plan, error) {
	p := plan{layout: l, files: map[string][]byte{}}
	err := fs.WalkDir(configFiles, "config", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := render(name, l)
		if err != nil {
			return err
		}
		if name == "config/objects.yaml" {
			p.objects = text
			return nil
		}
		p.files[strings.TrimPrefix(name, "config/")] = text
		return nil
	})
	if err != nil {
		return plan{}, fmt.Errorf("rendering configuration: %w", err)
	}
	p.processes = append(controlPlane(l), node(l)...)
	return p, nil
}

func render(name string, l layout) ([]byte, error) {
	t, err := template.New(filepath.Base(name)).Option("missingkey=error").ParseFS(configFiles, name)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	err = t.Execute(&text, l)
	return text.Bytes(), err
}

// key is what decides whether a running cluster is this one: configuration, command lines, objects and versions.
func (p plan) key(versions ...string) string {
	parts := map[string][]byte{"objects": p.objects, "versions": []byte(strings.Join(versions, " "))}
	for name, content := range p.files {
		parts["file "+name] = content
	}
	for i, process := range p.processes {
		parts[fmt.Sprintf("process %02d", i)] = []byte(fmt.Sprintf("%q", process.Argv))
	}
	for name, user := range identities {
		parts["identity "+name] = []byte(user)
	}
	return digest(parts)
}

// process is the planned process of that name.
func (p plan) process(name string) planned {
	for _, process := range p.processes {
		if process.Name == name {
			return process
		}
	}
	panic("no process " + name)
}

func controlPlane(l layout) []planned {
	return []planned{etcd(l), apiServer(l), controllerManager(l), scheduler(l)}
}

func node(l layout) []planned {
	return []planned{containerd(l), kubelet(l), kubeProxy(l), firewall(l), dns(l), provisioner(l)}
}

package workspacepod

import (
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"execsession.dev/sandbox"
)

// volumeDenied is empty and nobody can write to it: what lies behind it cannot be reached.
const volumeDenied = "execsession-denied"

// protection is what a profile takes away below the folders that commands write. The kernel's rules
// cannot do that, but mounts can, and those are made with the pod.
type protection struct {
	// parts are mounts of a volume's own folders: the read-only ones, and those on the way to a protected
	// path. A mount point cannot be renamed, so that nobody moves a protected folder away by its parent.
	parts map[string]corev1.VolumeMount
	// hidden are mounts of the empty volume.
	hidden map[string]corev1.VolumeMount
}

// protect says which mounts a profile asks for. What cannot be expressed by one is left
// to the agent, which checks every path of its policy and refuses what is not protected.
func protect(in Input) protection {
	p := protection{parts: map[string]corev1.VolumeMount{}, hidden: map[string]corev1.VolumeMount{}}
	if in.Filesystem.Mode == sandbox.ReadOnly {
		return p
	}
	volumes := map[string]string{homeDir: volumeHome, tmpDir: volumeTmp, in.workspaceDir(): volumeWorkspace}
	denied := outermost(slices.DeleteFunc(slices.Clone(in.Filesystem.DeniedPaths), func(dir string) bool {
		// What a pattern matches is not known before the pod runs.
		return strings.ContainsAny(dir, "*?[") || !expressible(dir)
	}))
	readOnly := slices.DeleteFunc(outermost(in.Filesystem.ReadOnlyPaths), func(dir string) bool {
		return holding(denied, dir) != ""
	})
	for _, dir := range readOnly {
		p.mount(volumes, dir, true)
	}
	for _, dir := range denied {
		// In a read-only folder no mount point could be made.
		if holding(readOnly, dir) == "" && p.mount(volumes, path.Dir(dir), false) {
			p.hidden[dir] = corev1.VolumeMount{Name: volumeDenied, MountPath: dir, ReadOnly: true}
		}
	}
	return p
}

// mount mounts a folder of a volume onto itself, and every folder on the way there. It says
// whether the path lies in a volume that commands write, and can be a mount's.
func (p protection) mount(volumes map[string]string, dir string, readOnly bool) bool {
	at := holding(slices.Collect(maps.Keys(volumes)), dir)
	if at == "" || !expressible(dir) {
		return false
	}
	for part := dir; part != at; part = path.Dir(part) {
		if _, known := p.parts[part]; !known {
			p.parts[part] = corev1.VolumeMount{Name: volumes[at], MountPath: part, SubPath: strings.TrimPrefix(part, at+"/")}
		}
	}
	if readOnly && dir != at {
		mount := p.parts[dir]
		mount.ReadOnly = true
		p.parts[dir] = mount
	}
	return true
}

// expressible says that a mount can have the path.
func expressible(dir string) bool { return path.Clean(dir) == dir && !strings.Contains(dir, ":") }

// mounts are in the order in which they are made: a folder before what is in it.
func (p protection) mounts() []corev1.VolumeMount {
	var list []corev1.VolumeMount
	for _, part := range slices.Sorted(maps.Keys(p.parts)) {
		list = append(list, p.parts[part])
	}
	for _, dir := range slices.Sorted(maps.Keys(p.hidden)) {
		list = append(list, p.hidden[dir])
	}
	return list
}

func (p protection) volumes() []corev1.Volume {
	if len(p.hidden) == 0 {
		return nil
	}
	return []corev1.Volume{emptyDir(volumeDenied)}
}

// outermost drops the paths that lie in another of them, and duplicates.
func outermost(paths []string) []string {
	sorted := slices.Compact(slices.Sorted(slices.Values(paths)))
	var list []string
	for _, p := range sorted {
		if holding(list, p) == "" {
			list = append(list, p)
		}
	}
	return list
}

// holding returns the longest of the folders that a path is or lies below, "" if there is none.
func holding(folders []string, p string) string {
	found := ""
	for _, folder := range folders {
		if within(p, folder) && len(folder) > len(found) {
			found = folder
		}
	}
	return found
}

package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// changing are the rights by which something can be changed.
const changing landlock.AccessFSSet = ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeChar |
	ll.AccessFSMakeDir | ll.AccessFSMakeReg | ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeBlock | ll.AccessFSMakeSym | ll.AccessFSRefer

// FuzzPolicy compiles any document that is accepted as a policy. The compiled rules allow at most what the policy's words
// do, by a reading of them that has nothing in common with the compiler's.
func FuzzPolicy(f *testing.F) {
	for _, seed := range []string{
		`{"filesystem":{"mode":"WorkspaceWrite"},"network":{"mode":"None"},"process":{},"enforcement":"Required"}`,
		`{"filesystem":{"mode":"ReadOnly","deniedPaths":["/etc","/usr/share"]},"network":{"mode":"Loopback"},"process":{"deniedSyscalls":["sync","chmod"]},"enforcement":"Required"}`,
		`{"filesystem":{"mode":"FullAccess","writableRoots":["/proc/sys"]},"network":{"mode":"Open"},"process":{"limits":{"core":0}},"enforcement":"BestEffort","minLandlockABI":4}`,
		`{"filesystem":{"mode":"WorkspaceWrite","writableRoots":["/var/tmp","/dev/shm","/proc/self"],"readOnlyPaths":["/var"],"deniedPaths":["/var/tmp/x","/dev"]},` +
			`"network":{"mode":"Proxy","allowedDomains":["**.a.example"],"methods":"Limited"},"process":{},"enforcement":"Required"}`,
		`{"filesystem":{"mode":"WorkspaceWrite","writableRoots":["/../etc"]},"network":{"mode":"None"},"enforcement":"Required"}`,
		`{"filesystem":{"mode":"WorkspaceWrite","deniedPaths":["/etc/*"]},"network":{"mode":"none"},"enforcement":"Required"}`,
		`{"filesystem":{"mode":"ReadOnly"},"filesystem":{"mode":"FullAccess"},"network":{"mode":"None"},"enforcement":"Required"}`,
		`{"filesystem":{"mode":"ReadOnly"},"network":{"mode":"None"},"enforcement":"Required","more":1}`,
		`null`, `{`, ``,
	} {
		f.Add([]byte(seed))
	}
	s := newStage(f, true)
	f.Fuzz(func(t *testing.T, document []byte) {
		policy, err := parsePolicy(document)
		if err != nil {
			return
		}
		written, err := json.Marshal(policy)
		check(t, err)
		if again, err := parsePolicy(written); err != nil || !equalPolicies(t, policy, again) {
			t.Fatalf("written and read again it is %+v, %v", again, err)
		}
		layout := s.layout()
		p, err := newPlan(policy, layout, newKernel, unlimited)
		if err != nil {
			var field *FieldError
			if !errors.As(err, &field) && !strings.Contains(err.Error(), "entries") && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("an error of nobody: %v", err)
			}
			return
		}
		checkGrants(t, policy, layout, p)
		checkCalls(t, policy, p)
	})
}

func equalPolicies(t *testing.T, a, b Policy) bool {
	t.Helper()
	first, err := json.Marshal(a)
	check(t, err)
	second, err := json.Marshal(b)
	check(t, err)
	return string(first) == string(second)
}

// checkGrants reads what may be changed and what may not be seen out of the policy.
func checkGrants(t *testing.T, policy Policy, layout Layout, p *plan) {
	t.Helper()
	below := func(path string, roots []string) bool {
		return slices.ContainsFunc(roots, func(root string) bool {
			rel, err := filepath.Rel(root, path)
			return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
		})
	}
	var roots []string
	switch policy.Filesystem.Mode {
	case WorkspaceWrite:
		roots = slices.Concat([]string{layout.Workspace}, layout.Writable, policy.Filesystem.WritableRoots)
	case FullAccess:
		roots = []string{"/"}
	case ReadOnly:
	}
	for _, g := range p.grants {
		if g.rights&changing != 0 && !below(g.path, roots) && !slices.Contains(deviceFiles, g.path) {
			t.Errorf("%s may be changed (%v) under %+v", g.path, g.rights, policy.Filesystem)
		}
		if policy.Filesystem.Mode == FullAccess && g.rights&changing != 0 && below(g.path, []string{"/proc", "/sys"}) {
			t.Errorf("%s may be changed", g.path)
		}
	}
	closed := slices.Clone(layout.Hidden)
	for _, path := range policy.Filesystem.DeniedPaths {
		reported := slices.ContainsFunc(p.gaps, func(g Gap) bool { return g.Value == path })
		if !reported && !slices.Contains(deviceFiles, path) {
			closed = append(closed, path)
		}
	}
	for _, path := range closed {
		place, err := filepath.EvalSymlinks(path)
		if err != nil {
			place = path
		}
		if rights := rightsOf(p.grants, place); rights&^ll.AccessFSReadDir != 0 {
			t.Errorf("%s is open (%v) under %+v", place, rights, policy.Filesystem)
		}
	}
}

// checkCalls makes calls that the policy's words decide.
func checkCalls(t *testing.T, policy Policy, p *plan) {
	t.Helper()
	arch := architectures[newKernel.Arch]
	verdictOf := func(name string, args ...uint64) verdict {
		data := callData{audit: arch.audit, number: uint32(arch.number(syscalls[name]))}
		copy(data.args[:], args)
		return judge(arch, p.rules, data)
	}
	for _, name := range policy.Process.DeniedSyscalls {
		if arch.number(syscalls[name]) != absent && verdictOf(name) == allow {
			t.Errorf("%s is allowed", name)
		}
	}
	stream, datagram := verdictOf("socket", afInet, sockStream, 0), verdictOf("socket", afInet, sockDgram, 0)
	if raw := verdictOf("socket", afInet, 3, 1); raw == allow || raw == askOwner {
		t.Error("a raw socket is allowed")
	}
	open := policy.Network.Mode == OpenNetwork
	if !open && (stream == allow || datagram == allow || datagram == askOwner) || policy.Network.Mode == NoNetwork && stream == askOwner {
		t.Errorf("under %s TCP gives %#x and UDP %#x", policy.Network.Mode, stream, datagram)
	}
}

// parsePolicy reads a policy that a test or a fuzzer wrote. Package config reads those of users.
func parsePolicy(data []byte) (Policy, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var policy Policy
	if err := decoder.Decode(&policy); err != nil {
		return Policy{}, err
	}
	return policy, policy.Validate()
}

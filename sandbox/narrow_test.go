package sandbox

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	allFilesystemModes = []FilesystemMode{ReadOnly, WorkspaceWrite, FullAccess}
	allNetworkModes    = []NetworkMode{NoNetwork, LoopbackNetwork, ProxyNetwork, OpenNetwork}
)

func TestNarrow(t *testing.T) {
	rich := Policy{
		Filesystem:     Filesystem{Mode: WorkspaceWrite, WritableRoots: []string{"/srv/a"}, ReadOnlyPaths: []string{"/srv/b"}, DeniedPaths: []string{"/srv/c"}},
		Network:        Network{Mode: ProxyNetwork, AllowedDomains: []string{"a.example"}, DeniedDomains: []string{"b.example"}, Methods: "Limited"},
		Process:        Process{DeniedSyscalls: []string{"sync"}, Limits: map[string]uint64{"core": 0}},
		Enforcement:    BestEffort,
		MinLandlockABI: 4,
	}
	change := func(f func(*Policy)) Policy {
		p := rich
		f(&p)
		return p
	}
	full := change(func(p *Policy) {
		p.Filesystem = Filesystem{Mode: FullAccess, WritableRoots: []string{"/proc/sys/kernel", "/srv/a", "/sys", "/process"}}
	})
	cases := map[string]struct {
		reason string
		policy Policy
		asked  Narrowing
		want   Policy
	}{
		"nothing": {"asks for nothing", rich, Narrowing{}, rich},
		"its own": {"asks for what it has: the policy's enforcement stays, too", rich, Narrowing{WorkspaceWrite, ProxyNetwork}, rich},
		"files": {"no roots are left", rich, Narrowing{Filesystem: ReadOnly}, change(func(p *Policy) {
			p.Filesystem.Mode, p.Filesystem.WritableRoots, p.Enforcement = ReadOnly, nil, Required
		})},
		"network": {"lists of the proxy mean nothing without it", rich, Narrowing{Network: NoNetwork}, change(func(p *Policy) { p.Network, p.Enforcement = Network{Mode: NoNetwork}, Required })},
		"kernel's places": {"what FullAccess does not let be written stays closed", full, Narrowing{Filesystem: WorkspaceWrite}, change(func(p *Policy) {
			p.Filesystem, p.Enforcement = Filesystem{Mode: WorkspaceWrite, WritableRoots: []string{"/srv/a", "/process"}}, Required
		})},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before := c.policy.Filesystem.WritableRoots
			kept := slices.Clone(before)
			got, err := Narrow(c.policy, c.asked)
			check(t, err)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
			if !slices.Equal(before, kept) {
				t.Error("the policy that was given changed")
			}
		})
	}
}

// TestNarrowRefuses writes the order of the modes down a second time: every pair that is not here is refused.
func TestNarrowRefuses(t *testing.T) {
	within := map[string]bool{
		"ReadOnly<ReadOnly": true, "ReadOnly<WorkspaceWrite": true, "WorkspaceWrite<WorkspaceWrite": true,
		"ReadOnly<FullAccess": true, "WorkspaceWrite<FullAccess": true, "FullAccess<FullAccess": true,
		"None<None": true, "None<Loopback": true, "Loopback<Loopback": true, "None<Proxy": true, "Proxy<Proxy": true,
		"None<Open": true, "Loopback<Open": true, "Open<Open": true,
	}
	check := func(field, wanted, allowed string, policy Policy, asked Narrowing) {
		t.Helper()
		_, err := Narrow(policy, asked)
		var wider *WiderError
		switch {
		case within[wanted+"<"+allowed] && err != nil:
			t.Errorf("%s under %s: %v", wanted, allowed, err)
		case !within[wanted+"<"+allowed] && (!errors.As(err, &wider) || wider.Field != field || wider.Wanted != wanted || wider.Allowed != allowed || len(wider.Narrower) == 0):
			t.Errorf("%s under %s gives %v", wanted, allowed, err)
		}
	}
	for _, allowed := range allFilesystemModes {
		for _, wanted := range allFilesystemModes {
			check("filesystem", string(wanted), string(allowed), with(func(p *Policy) { p.Filesystem.Mode = allowed }), Narrowing{Filesystem: wanted})
		}
	}
	for _, allowed := range allNetworkModes {
		for _, wanted := range allNetworkModes {
			check("network", string(wanted), string(allowed), with(func(p *Policy) { p.Network.Mode = allowed }), Narrowing{Network: wanted})
		}
	}
	for field, asked := range map[string]Narrowing{"sandbox.filesystem": {Filesystem: "readonly"}, "sandbox.network": {Network: "Some"}} {
		var wrong *FieldError
		if _, err := Narrow(Default(), asked); !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%+v gives %v", asked, err)
		}
	}
}

// TestNarrowedIsSubset compiles random policies and what they are narrowed to: there is no right to a file and no
// call that the narrowed rules give and the policy's do not.
func TestNarrowedIsSubset(t *testing.T) {
	s := newStage(t, true)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 2))
	t.Logf("seed %d", seed)
	narrowings := 0
	for range 300 {
		policy, layout := randomPolicy(random, s)
		check(t, policy.Validate())
		asked := Narrowing{Filesystem: pick(random, append(allFilesystemModes, "")), Network: pick(random, append(allNetworkModes, ""))}
		narrowed, err := Narrow(policy, asked)
		if _, wider := errors.AsType[*WiderError](err); wider {
			continue
		}
		check(t, err)
		check(t, narrowed.Validate())
		caps := newKernel
		caps.LandlockABI = random.IntN(newestABI + 1)
		caps.UserNotify, caps.BindToDevice = true, true
		wide, err := newPlan(policy, layout, caps, unlimited)
		check(t, err)
		narrow, err := newPlan(narrowed, layout, caps, unlimited)
		check(t, err)
		narrowings++
		for _, g := range narrow.grants {
			if strings.HasPrefix(g.path, "/var/tmp/") && !within(g.path, s.base) {
				continue // The second plan may have seen what others made since the first; see TestNarrowedLauncher.
			}
			if more := g.rights &^ rightsOf(wide.grants, g.path); more != 0 {
				t.Fatalf("%+v narrowed by %+v gives rights %v at %s that the policy does not", policy, asked, more, g.path)
			}
		}
		compareFilters(t, random, wide, narrow)
	}
	if narrowings < 50 {
		t.Errorf("only %d policies were narrowed", narrowings)
	}
}

func pick[T any](random *rand.Rand, from []T) T { return from[random.IntN(len(from))] }

// randomPolicy makes a policy of the stage's folders and others.
func randomPolicy(random *rand.Rand, s stage) (Policy, Layout) {
	at := func(rel string) string { return filepath.Join(s.base, rel) }
	roots := []string{at("outside"), at("workspace/a"), at("agent/bin"), "/proc/sys", "/sys/fs", "/dev/shm", "/srv", "/proc"}
	taken := []string{at("outside"), at("outside/file"), at("home"), at("workspace/b"), "/etc", "/srv/x", "/sys/kernel", "/usr/share"}
	some := func(from []string) []string {
		return slices.DeleteFunc(slices.Clone(from), func(string) bool { return random.IntN(3) > 0 })
	}
	policy := Policy{
		Filesystem:  Filesystem{Mode: pick(random, allFilesystemModes), ReadOnlyPaths: some(taken), DeniedPaths: some(taken)},
		Network:     Network{Mode: pick(random, allNetworkModes)},
		Process:     Process{DeniedSyscalls: some([]string{"sync", "chmod", "getuid"})},
		Enforcement: pick(random, []Enforcement{Required, BestEffort}),
	}
	if policy.Filesystem.Mode != ReadOnly {
		policy.Filesystem.WritableRoots = some(roots)
	}
	if policy.Network.Mode == ProxyNetwork {
		policy.Network.AllowedDomains = some([]string{"a.example", "**.b.example"})
	}
	layout := s.layout()
	layout.Proxy = netip.MustParseAddrPort("127.0.0.1:3128")
	return policy, layout
}

// compareFilters makes calls to which both filters answer. A call that only the wider one hands to the supervisor is
// about a socket that the narrower one gives to nobody.
func compareFilters(t *testing.T, random *rand.Rand, wide, narrow *plan) {
	t.Helper()
	arch := architectures["amd64"]
	strength := func(v verdict) int {
		if v == allow {
			return 0
		}
		if v == askOwner {
			return 1
		}
		return 2
	}
	for range 200 {
		data := randomCall(random, arch, pick(random, []*plan{wide, narrow}).rules)
		before, after := judge(arch, wide.rules, data), judge(arch, narrow.rules, data)
		onlySockets := narrow.network == NoNetwork && before == askOwner &&
			slices.ContainsFunc([]string{"connect", "bind"}, func(name string) bool { return uint32(syscalls[name].amd64) == data.number })
		if strength(after) < strength(before) && !onlySockets {
			t.Fatalf("call %+v: %#x under %s, %#x when narrowed to %s", data, before, wide.network, after, narrow.network)
		}
	}
}

// TestNarrowedLauncher: what was created after the launcher was made is not opened by rules that are newer.
func TestNarrowedLauncher(t *testing.T) {
	requireABI(t, 6)
	s := newStage(t, true)
	policy := with(func(p *Policy) { p.Filesystem.DeniedPaths = []string{filepath.Join(s.base, "outside/secret")} })
	launcher, err := Compile(policy, s.layout(), Probe())
	check(t, err)
	defer launcher.Close()
	created := filepath.Join(s.base, "outside/created")
	check(t, os.WriteFile(created, []byte("late\n"), 0o644))
	narrowed, err := launcher.Narrow(Narrowing{Filesystem: ReadOnly})
	check(t, err)
	defer narrowed.Close()
	later, err := Compile(policy, s.layout(), Probe())
	check(t, err)
	defer later.Close()
	for name, c := range map[string]struct {
		launcher *Launcher
		script   string
		code     int
	}{
		"a launcher made later reads it, so it is a difference": {later, "cat " + created, 0},
		"the launcher does not":                                 {launcher, "cat " + created, 1},
		"nor does the narrowed one":                             {narrowed, "cat " + created, 1},
		"which reads what was there":                            {narrowed, "cat " + filepath.Join(s.base, "outside/file"), 0},
		"and writes nothing":                                    {narrowed, "> " + filepath.Join(s.base, "workspace/new"), 2},
		"while the launcher does":                               {launcher, "> " + filepath.Join(s.base, "workspace/new"), 0},
	} {
		status, _ := watchOne(t, c.launcher, []string{"/bin/sh", "-c", c.script}, "PATH=/usr/bin:/bin")
		if status.ExitStatus() != c.code {
			t.Errorf("%s: %q ended with %d, want %d", name, c.script, status.ExitStatus(), c.code)
		}
	}
	check(t, launcher.Close())
	var setup *SetupError
	if _, err := launcher.Narrow(Narrowing{Filesystem: ReadOnly}); !errors.As(err, &setup) || !errors.Is(err, os.ErrClosed) {
		t.Errorf("a launcher that is closed was narrowed: %v", err)
	}
	if status, _ := watchOne(t, narrowed, []string{"/bin/true"}); status.ExitStatus() != 0 {
		t.Error("what was narrowed from it ended with it")
	}
	if _, err := narrowed.Narrow(Narrowing{Filesystem: WorkspaceWrite}); !errors.As(err, new(*WiderError)) {
		t.Errorf("a narrowed launcher was widened: %v", err)
	}
}

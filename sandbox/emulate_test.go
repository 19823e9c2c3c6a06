package sandbox

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// roleBelow puts filters over itself that make the kernel look like another one, and becomes another part. An older Landlock cannot be made
// to look so, because a filter can only answer with errors: it is forced by Capabilities instead.
const roleBelow = "below"

// The emulations.
const (
	withoutLandlock   = "no-landlock"
	withoutSupervisor = "no-supervisor"
	withoutKillable   = "no-killable-waits" // before Linux 5.19
	supervisorAbove   = "supervisor-above"
)

var emulations = map[string]func() error{
	withoutLandlock: func() error {
		return emulate(rule{calls: []string{"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"}, then: refuse(enosys)})
	},
	withoutSupervisor: func() error {
		return emulate(rule{calls: []string{"seccomp"}, when: []test{argIs(0, unix.SECCOMP_SET_MODE_FILTER), anyBit(1, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)}, then: refuse(uint16(unix.EINVAL))})
	},
	withoutKillable: func() error {
		return emulate(rule{calls: []string{"seccomp"}, when: []test{argIs(0, unix.SECCOMP_SET_MODE_FILTER), anyBit(1, unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)}, then: refuse(uint16(unix.EINVAL))})
	},
	// The listener stays open in whoever this process becomes, as a supervisor's that lives on.
	supervisorAbove: func() error {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
		fd, err := installListener([]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: uint32(allow)}}, 0)
		if err != nil {
			return err
		}
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
		return err
	},
}

// emulate installs a filter on the calling thread.
func emulate(rules ...rule) error {
	program, err := newProgram(architectures[runtime.GOARCH], rules)
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return installFilter(program)
}

// belowEnvironment is that of a process that becomes the part below the emulations.
func belowEnvironment(part string, above []string) []string {
	return []string{roleVariable + "=" + roleBelow, "BELOW_PART=" + part, "BELOW=" + strings.Join(above, ",")}
}

// belowMain runs on the main thread, which the goroutine is locked to: the filters are its, and stay when it becomes another program.
func belowMain() int {
	for name := range strings.SplitSeq(os.Getenv("BELOW"), ",") {
		install, known := emulations[name]
		if !known {
			fmt.Fprintf(os.Stderr, "no emulation %q\n", name)
			return 1
		}
		if err := install(); err != nil {
			fmt.Fprintf(os.Stderr, "emulating %s: %v\n", name, err)
			return 1
		}
	}
	environment := []string{roleVariable + "=" + os.Getenv("BELOW_PART")}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, roleVariable+"=") {
			environment = append(environment, variable)
		}
	}
	err := syscall.Exec("/proc/self/exe", os.Args, environment)
	fmt.Fprintln(os.Stderr, "becoming another part:", err)
	return 1
}

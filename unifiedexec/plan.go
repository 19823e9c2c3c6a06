package unifiedexec

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// plan is a checked command: exactly what will be started.
type plan struct {
	start   StartFunc
	display string
	program string
	argv    []string
	env     []string
	dir     string
	tty     bool
	size    Size
	stdin   StdinMode
	// null is what StdinNull reads.
	null descriptor
	data []byte
	// shell and login are set for a script, until finish makes the arguments.
	shell shell
	login bool
	// preamble runs in the shell before the script; it waits at preambleFD.
	preamble string
	// script is what waits at scriptFD, because it is too large for an argument.
	script string
	// report is where the shell leaves its state; nil when it does not.
	report  *report
	notices []string
	timeout time.Duration
	// retain is how much output is kept.
	retain int
}

// plan checks a command against the settings.
func (s *settings) plan(c Command) (plan, error) {
	if err := checkCommand(c); err != nil {
		return plan{}, err
	}
	p := plan{
		tty: c.TTY, size: c.Size, stdin: c.Stdin, data: c.StdinData, timeout: c.Timeout,
		dir:    clean(s.Workdir, c.Workdir),
		retain: s.Limits.OutputBytes,
		start:  s.Start,
	}
	if c.Start != nil {
		p.start = c.Start
	}
	if p.tty && p.size == (Size{}) {
		p.size = Size{Rows: 24, Columns: 80}
	}
	sh, err := s.shellFor(c.Shell)
	if err != nil {
		return plan{}, err
	}
	p.env = s.environ(sh.path, p.dir, c.Env)
	if c.Argv != nil {
		p.display, p.argv = quoteArgv(c.Argv), c.Argv
		p.program, err = findProgram(c.Argv[0], p.dir, lookup(p.env, "PATH"))
		return p, err
	}
	login, err := s.login(c.Login)
	if err != nil {
		return plan{}, err
	}
	p.display, p.program = c.Script, sh.path
	p.shell, p.login = sh, login
	return p, nil
}

// finish makes the arguments of a script's shell.
func (p *plan) finish() {
	if p.shell.path == "" {
		return
	}
	p.argv, p.script = p.shell.argv(p.display, p.login)
	if p.preamble != "" {
		p.lead()
	}
}

// lead lets a shell run what waits at preambleFD before its script, out of sight.
func (p *plan) lead() {
	first := closing(preambleFD) + "\n"
	between := "\n" // What the preamble says of aliases and options holds from the next line on.
	if p.script != "" {
		between = "; "
	}
	if p.shell.readByBash(p.env, p.login) {
		p.env = setVariable(slices.Clone(p.env), "BASH_ENV", descriptorFile(preambleFD))
		first += "unset BASH_ENV\n"
	} else {
		p.argv[2] = sourcing + between + p.argv[2]
	}
	p.preamble = first + p.preamble
}

func (s *settings) login(request *bool) (bool, error) {
	allowed := s.Shell.Login != LoginForbidden
	if request == nil {
		return allowed, nil
	}
	if *request && !allowed {
		return false, &FieldError{Field: "login", Problem: "login shell is disabled by config; omit `login` or set it to false."}
	}
	return *request, nil
}

// checkCommand checks what needs no look at the machine.
func checkCommand(c Command) error {
	if (c.Script == "") == (len(c.Argv) == 0) {
		return &FieldError{Field: "script", Problem: "exactly one of script and argv must say what to run"}
	}
	if strings.ContainsRune(c.Script, 0) {
		return &FieldError{Field: "script", Problem: "holds a NUL byte"}
	}
	if len(c.Argv) > 0 && c.Argv[0] == "" {
		return &FieldError{Field: "argv", Problem: "the program's name is empty"}
	}
	if slices.ContainsFunc(c.Argv, func(arg string) bool { return strings.ContainsRune(arg, 0) }) {
		return &FieldError{Field: "argv", Problem: "holds a NUL byte"}
	}
	if strings.ContainsRune(c.Workdir, 0) {
		return &FieldError{Field: "workdir", Problem: "holds a NUL byte"}
	}
	if c.Script == "" && c.Shell != "" {
		return &FieldError{Field: "shell", Value: shorten(c.Shell), Problem: "only scripts run in a shell"}
	}
	if c.Script == "" && c.Login != nil {
		return &FieldError{Field: "login", Problem: "only scripts run in a shell"}
	}
	if c.Timeout < 0 {
		return &FieldError{Field: "timeout", Value: c.Timeout.String(), Problem: "is negative"}
	}
	if err := checkStdio(c); err != nil {
		return err
	}
	return checkOverrides(c.Env)
}

func checkStdio(c Command) error {
	switch {
	case c.Stdin < StdinNull || c.Stdin > StdinData:
		return &FieldError{Field: "stdin", Problem: "unknown mode"}
	case c.Stdin != StdinData && len(c.StdinData) > 0:
		return &FieldError{Field: "stdin_data", Problem: "is only for the mode that sends it"}
	case c.TTY && c.Stdin == StdinData:
		return &FieldError{Field: "stdin_data", Problem: "a terminal has no end of input; write to the process instead"}
	case !c.TTY && c.Size != (Size{}):
		return &FieldError{Field: "size", Problem: "is only for a terminal"}
	case (c.Size.Rows == 0) != (c.Size.Columns == 0):
		return &FieldError{Field: "size", Problem: "needs both rows and columns"}
	}
	return nil
}

// check looks whether the folder and the program are there. A start that the kernel refuses is told by it afterwards;
// before, it is only worth its time if the start would cost somebody something.
func (p *plan) check() error {
	if err := checkDir(p.dir); err != nil {
		return err
	}
	if errno := executable(p.program); errno != 0 {
		return &StartError{Op: "exec", Path: p.program, Errno: errno}
	}
	return nil
}

// checkDir makes a missing folder an error of its own: the kernel's answer to the start would not say whether it meant the
// folder or the program.
func checkDir(dir string) error {
	mode, errno := modeOf(dir)
	if errno == 0 && mode&unix.S_IFMT != unix.S_IFDIR {
		errno = syscall.ENOTDIR
	}
	if errno != 0 {
		return &StartError{Op: "chdir", Path: dir, Errno: errno}
	}
	return nil
}

// modeOf is a file's kind and permissions.
func modeOf(path string) (mode uint32, errno syscall.Errno) {
	var st unix.Stat_t
	for {
		switch err := unix.Stat(path, &st); {
		case err == nil:
			return st.Mode, 0
		case !errors.Is(err, unix.EINTR):
			return 0, errnoOf(err)
		}
	}
}

// findProgram resolves a program as a shell in dir would. Whether one with a slash is there, the start will tell.
func findProgram(name, dir, path string) (string, error) {
	if strings.Contains(name, "/") {
		return clean(dir, name), nil
	}
	found := &StartError{Op: "exec", Path: name, Errno: syscall.ENOENT, Detail: "not found in PATH"}
	for _, entry := range filepath.SplitList(path) {
		program := filepath.Join(clean(dir, entry), name)
		errno := executable(program)
		if errno == 0 {
			return program, nil
		}
		if errno == syscall.EACCES {
			found = &StartError{Op: "exec", Path: program, Errno: errno}
		}
	}
	return "", found
}

// errnoOf is the kernel's part of an error of package os.
func errnoOf(err error) syscall.Errno {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return syscall.EIO
}

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// quietLimit is how long progress stays silent while something is running.
const quietLimit = 8 * time.Second

// progress tells a person what is going on: a line when a step begins or ends, and a line about what still runs
// whenever nothing else was said for a while.
type progress struct {
	out io.Writer
	now func() time.Time

	mu     sync.Mutex
	active []*step
	last   time.Time
	stop   chan struct{}
	done   chan struct{}
}

// step is a running piece of work.
type step struct {
	name  string
	begun time.Time
	count func() string // what is done so far; nil if nobody counts
}

func newProgress(out io.Writer) *progress {
	return &progress{out: out, now: time.Now}
}

// Start begins the lines about what still runs; Stop ends them and waits.
func (p *progress) Start() {
	p.stop, p.done = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(p.done)
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-p.stop:
				return
			case <-ticker.C:
				p.remind()
			}
		}
	}()
}

func (p *progress) Stop() {
	close(p.stop)
	<-p.done
}

// Say prints a line.
func (p *progress) Say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.printLocked(fmt.Sprintf(format, args...))
}

// Begin prints that a step begins and returns what ends it, which prints how long it took unless it is given an error.
func (p *progress) Begin(format string, args ...any) func(error) {
	return p.BeginCounting(nil, format, args...)
}

// BeginCounting is Begin for a long step, whose reminders say how far it has come.
func (p *progress) BeginCounting(count func() string, format string, args ...any) func(error) {
	s := &step{name: fmt.Sprintf(format, args...), begun: p.now(), count: count}
	p.mu.Lock()
	p.active = append(p.active, s)
	p.printLocked(s.name + " ...")
	p.mu.Unlock()
	return func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.active = slices.DeleteFunc(p.active, func(other *step) bool { return other == s })
		if err == nil {
			p.printLocked(s.name + " ... done in " + p.sinceLocked(s))
		}
	}
}

func (p *progress) remind() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.active) == 0 || p.now().Sub(p.last) < quietLimit {
		return
	}
	running := make([]string, 0, len(p.active))
	for _, s := range p.active {
		far := p.sinceLocked(s)
		if s.count != nil {
			far += ", " + s.count()
		}
		running = append(running, s.name+": "+far)
	}
	p.printLocked("still " + strings.Join(running, ", "))
}

func (p *progress) sinceLocked(s *step) string {
	elapsed := p.now().Sub(s.begun)
	if elapsed < 10*time.Second {
		return elapsed.Round(100 * time.Millisecond).String()
	}
	return elapsed.Round(time.Second).String()
}

func (p *progress) printLocked(line string) {
	p.last = p.now()
	// Nobody can be told that nobody can be told.
	_, _ = fmt.Fprintln(p.out, "cluster: "+line)
}

package sandbox

import (
	"syscall"
	"time"
)

// Denial is a fact: the supervisor itself refused these calls. What Landlock refuses
// makes no Denial, nor what a filter above this one refuses before this one is asked.
type Denial struct {
	// Rule is the identifier of the rule that decided, as in filter_rules.go: "socket", "mounts", "policy".
	Rule string
	// Syscall is the call's name.
	Syscall string
	// Arguments are those that the decision or a reader needs, such as "family=AF_INET type=SOCK_DGRAM protocol=0".
	Arguments string
	// Address is where to, for connect and bind: "192.0.2.1:443". It was read from the
	// caller's memory, which its other threads may have changed since; no decision rests on it alone.
	Address string
	// Errno is what the call failed with.
	Errno syscall.Errno
	// Program is the path of the program that called first, "" if it could not be read.
	Program string
	// PID is its process.
	PID int
	// Count is how many calls this stands for: those of one rule, call, arguments and program, made
	// since the last Denial about them.
	Count uint64
	// Omitted says that calls of many kinds are counted together, by their rule alone.
	Omitted bool
	// First and Last are when the first and the last of them were refused.
	First, Last time.Time
}

// The bounds of what one start's denials may cost, whatever its processes do.
const (
	// maxKinds is how many kinds of calls are told apart within one window.
	maxKinds = 16
	// shortest and longest bound the window after which what repeats is told again.
	shortestWindow = time.Second
	longestWindow  = time.Minute
)

// denialKind is what makes two denials the same but for their number.
type denialKind struct {
	rule      string
	syscall   string
	arguments string
	address   string
	program   string
}

func (d *Denial) kind() denialKind {
	return denialKind{rule: d.Rule, syscall: d.Syscall, arguments: d.Arguments, address: d.Address, program: d.Program}
}

// tally counts denials. The first of a kind is told at once; those that repeat it
// are told as a number at the end of a window, which doubles while they go on: a million
// calls in a loop make a handful of events.
type tally struct {
	tell   func(Denial)
	window time.Duration
	// due is when the window ends; zero while nothing was refused.
	due   time.Time
	kinds map[denialKind]*Denial
	// others counts, by rule, what found no place among the kinds.
	others map[string]*Denial
}

// full says that only the rule of a further kind will be kept.
func (t *tally) full() bool { return len(t.kinds) >= maxKinds }

// add counts one refusal.
func (t *tally) add(d Denial, now time.Time) {
	d.First, d.Last = now, now
	if t.due.IsZero() {
		t.window = shortestWindow
		t.due = now.Add(t.window)
		t.kinds, t.others = make(map[denialKind]*Denial), make(map[string]*Denial)
	}
	kind := d.kind()
	if known := t.kinds[kind]; known != nil {
		known.count(now)
		return
	}
	if !t.full() {
		t.kinds[kind] = &d
		told := d
		told.Count = 1
		t.tell(told)
		return
	}
	other := t.others[d.Rule]
	if other == nil {
		other = &Denial{Rule: d.Rule, Errno: d.Errno, Omitted: true}
		t.others[d.Rule] = other
	}
	other.count(now)
}

func (d *Denial) count(now time.Time) {
	if d.Count == 0 {
		d.First = now
	}
	d.Count++
	d.Last = now
}

// flush tells what was counted, and forgets the kinds that did not repeat.
func (t *tally) flush(now time.Time) {
	repeated := false
	for kind, d := range t.kinds {
		if d.Count == 0 {
			delete(t.kinds, kind)
			continue
		}
		t.tell(*d)
		d.Count = 0
		repeated = true
	}
	for rule, d := range t.others {
		t.tell(*d)
		delete(t.others, rule)
		repeated = true
	}
	if !repeated {
		t.due = time.Time{}
		return
	}
	t.window = min(2*t.window, longestWindow)
	t.due = now.Add(t.window)
}

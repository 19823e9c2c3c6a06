package agentd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"execsession.dev/agentd/ledger"
	"execsession.dev/unifiedexec"
)

// journalLimits are the journal's times and sizes; tests have smaller ones.
type journalLimits struct {
	// patience is how long a command waits for a disk that does not take its record; then none waits until it does.
	patience time.Duration
	// syncEvery is the least time between the ends of one fdatasync and the begin of the next.
	syncEvery time.Duration
	// retry is how long after a failure the file is written anew.
	retry time.Duration
	// size is what a file may have before it is written anew, unless twice what it had after the last time is more.
	size int64
	// queue bounds what waits for a disk, in bytes.
	queue int
}

var defaultJournalLimits = journalLimits{
	patience: time.Second, syncEvery: 100 * time.Millisecond, retry: 10 * time.Second, size: 1 << 20, queue: 1 << 20,
}

// journalFile is what the journal needs of a file.
type journalFile interface {
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	Sync() error
}

// journal keeps what started and how it ended in a file, so that a killed agentd's successor can tell. See
// docs/design/journal.md. It is an unifiedexec.Journal.
//
// Two goroutines own the file: write appends, tend does what waits for a disk (syncing, writing anew). A command
// waits for the first only, and not for ever.
type journal struct {
	path    string
	machine string
	boot    string
	limits  journalLimits
	log     *slog.Logger
	now     func() time.Time
	open    func(path string, flags int) (journalFile, error)
	// onTrouble is called when what state tells changed.
	onTrouble func()
	// past is what an earlier run left.
	past journalled
	// kept is what the file has to hold to be whole.
	kept func() []unifiedexec.Info

	mu      sync.Mutex
	next    *batch
	busy    *batch
	stalled bool
	// ending says that nobody writes what comes now.
	ending  bool
	lost    uint64
	problem string
	// wake and work hold a token each when there is something for write and for tend; late says that wake will.
	wake, work chan struct{}
	late       atomic.Bool
	// dirty says that an exit was written and not synced, stale that the file has to be written anew.
	dirty, stale bool

	// fileMu is held while the file is written or exchanged.
	fileMu sync.Mutex
	file   journalFile
	size   int64
	// floor is the size after the file was last written anew; headed says that it begins with head.
	floor  int64
	headed bool
	head   openRecord
	// tee gets what is appended while another file is being made; nil otherwise.
	tee     *[]byte
	flawed  bool
	stop    chan struct{}
	writers sync.WaitGroup
	tenders sync.WaitGroup
}

// batch is records on their way to the file in one write.
type batch struct {
	lines   []byte
	records uint64
	// sync is set when one of them is an exit.
	sync bool
	kept chan struct{}
	// released says that kept is closed.
	released bool
}

func newBatch() *batch { return &batch{kept: make(chan struct{})} }

func (b *batch) releaseLocked() {
	if b != nil && !b.released {
		b.released = true
		close(b.kept)
	}
}

// machineID is the kernel's name for its present run; empty where it has none.
func machineID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// newJournal reads what an earlier run left. What cannot be read or written is told by state and stops nobody.
func newJournal(path, boot string, log *slog.Logger) *journal {
	j := &journal{
		path: path, machine: machineID(), boot: boot, limits: defaultJournalLimits, log: log, now: time.Now,
		open: func(path string, flags int) (journalFile, error) {
			return os.OpenFile(path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
		},
		onTrouble: func() {},
		wake:      make(chan struct{}, 1), work: make(chan struct{}, 1), stop: make(chan struct{}),
	}
	if err := j.read(); err != nil {
		j.trouble(0, fmt.Errorf("reading the journal: %w", err))
	}
	if j.past.machine != j.machine {
		// Numbers and marks of another run of the machine name nobody here.
		j.past.marks = 0
		for i := range j.past.processes {
			j.past.processes[i].Mark, j.past.processes[i].PIDStart = 0, 0
		}
	}
	return j
}

func (j *journal) read() error {
	file, err := os.Open(j.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	j.past, err = readJournal(file)
	return err
}

// start goes on with the file that is there and lets tend write it anew from what kept tells.
func (j *journal) start(kept func() []unifiedexec.Info) {
	j.kept = kept
	j.head = openRecord{Boot: j.boot, Machine: j.machine, Time: j.now().UTC(), Marks: unifiedexec.Marks()}
	if err := j.reopen(); err != nil {
		j.trouble(0, fmt.Errorf("opening the journal: %w", err))
	}
	j.stale = true
	signal(j.work)
	j.writers.Go(j.write)
	j.tenders.Go(j.tend)
}

// reopen appends to the file as it is: should it not be possible to write a new one, this run is told there.
func (j *journal) reopen() error {
	file, err := j.open(j.path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	info, err := os.Stat(j.path)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	j.fileMu.Lock()
	defer j.fileMu.Unlock()
	j.file, j.size = file, info.Size()
	var lines []byte
	if j.past.open {
		lines = append(lines, '\n')
	}
	return j.appendLocked(appendRecord(lines, journalRecord{Open: &j.head}))
}

// Started implements unifiedexec.Journal.
func (j *journal) Started(info unifiedexec.Info) <-chan struct{} {
	kept := j.add(startOf(info), false)
	signal(j.wake)
	return kept
}

// Ended implements unifiedexec.Journal.
func (j *journal) Ended(info unifiedexec.Info) <-chan struct{} {
	kept := j.add(endOf(info), true)
	signal(j.wake)
	return kept
}

// Told implements unifiedexec.Journal. Nobody waits for it, so that it goes with what comes next, or by itself a moment
// later: killed in between, the next agentd tells the end once more.
func (j *journal) Told(id int32) {
	j.add(journalRecord{Told: id}, false)
	if j.late.CompareAndSwap(false, true) {
		time.AfterFunc(j.limits.syncEvery, func() {
			j.late.Store(false)
			signal(j.wake)
		})
	}
}

// add makes a record ready to be written; the channel is closed once it is in the file, or nobody waits for that any more.
func (j *journal) add(r journalRecord, sync bool) <-chan struct{} {
	const ordinary = 384 // bytes of most records
	line := appendRecord(make([]byte, 0, ordinary), r)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.next == nil {
		j.next = newBatch()
		if j.stalled || j.ending {
			j.next.releaseLocked()
		}
	}
	b := j.next
	if len(b.lines)+len(line) > j.limits.queue {
		// The disk has taken nothing for long. The table knows what is missing, for when it does.
		j.lost++
		j.stale = true
		return b.kept
	}
	if b.lines == nil {
		b.lines = line
	} else {
		b.lines = append(b.lines, line...)
	}
	b.records++
	b.sync = b.sync || sync
	return b.kept
}

// signal leaves a token, unless there is one.
func signal(tokens chan<- struct{}) {
	select {
	case tokens <- struct{}{}:
	default:
	}
}

// write appends what comes until close.
func (j *journal) write() {
	impatience := time.AfterFunc(time.Hour, j.giveUp)
	impatience.Stop()
	for {
		b, ending := j.nextBatch()
		if b == nil && ending {
			return
		}
		if b == nil {
			<-j.wake
			continue
		}
		impatience.Reset(j.limits.patience)
		err := j.put(b)
		impatience.Stop()
		j.wrote(b, err)
	}
}

func (j *journal) nextBatch() (b *batch, ending bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	b, j.next = j.next, nil
	j.busy = b
	return b, j.ending
}

// put writes a batch in one call. What could be written of one that failed is taken back: what follows must not be
// joined to half a line.
func (j *journal) put(b *batch) error {
	j.fileMu.Lock()
	defer j.fileMu.Unlock()
	return j.appendLocked(b.lines)
}

func (j *journal) appendLocked(lines []byte) error {
	if j.tee != nil {
		*j.tee = append(*j.tee, lines...)
	}
	if j.file == nil {
		return errors.New("there is no file")
	}
	if _, err := j.file.WriteAt(lines, j.size); err != nil {
		_ = j.file.Truncate(j.size) // Whatever is left there is written over.
		j.flawLocked()
		return err
	}
	j.size += int64(len(lines))
	return nil
}

// flawLocked notes in the file itself that a record is missing. It takes no room.
func (j *journal) flawLocked() {
	if !j.headed || j.flawed {
		return
	}
	j.flawed = true
	head := j.head
	head.Flawed = 1
	_, _ = j.file.WriteAt(appendRecord(nil, journalRecord{Open: &head}), 0) // Nothing more can be done.
}

// wrote lets go who waits for a batch.
func (j *journal) wrote(b *batch, err error) {
	j.fileMu.Lock()
	large := j.size > max(j.limits.size, 2*j.floor)
	j.fileMu.Unlock()
	j.mu.Lock()
	j.busy = nil
	j.stalled = false
	b.releaseLocked()
	j.dirty = j.dirty || b.sync && err == nil
	j.stale = j.stale || large || err != nil
	work := j.dirty || j.stale
	j.mu.Unlock()
	if work {
		signal(j.work)
	}
	if err != nil {
		j.trouble(b.records, fmt.Errorf("writing the journal: %w", err))
	}
}

// giveUp makes commands wait no more for a disk that takes nothing. What is on its way may still get there.
func (j *journal) giveUp() {
	j.mu.Lock()
	if j.busy == nil {
		j.mu.Unlock()
		return
	}
	j.stalled = true
	j.stale = true
	err := fmt.Errorf("the journal's disk took nothing for %s", j.limits.patience)
	first := j.noteLocked(0, err)
	j.busy.releaseLocked()
	j.next.releaseLocked()
	j.mu.Unlock()
	signal(j.work)
	j.tell(first, err)
}

// trouble counts records that are lost, and says why.
func (j *journal) trouble(records uint64, err error) {
	j.mu.Lock()
	first := j.noteLocked(records, err)
	j.mu.Unlock()
	j.tell(first, err)
}

// noteLocked is true if the trouble is another than the last.
func (j *journal) noteLocked(records uint64, err error) (first bool) {
	j.lost += records
	first = j.problem != err.Error()
	j.problem = err.Error()
	return first
}

func (j *journal) tell(first bool, err error) {
	if first {
		j.log.Warn("the journal has trouble: after a kill of agentd, some commands may not be told", "err", err)
		j.onTrouble()
	}
}

// whole says that the file holds everything, unless something went wrong since.
func (j *journal) whole() {
	j.mu.Lock()
	before := j.problem
	if j.stale {
		before = ""
	} else {
		j.problem = ""
	}
	j.mu.Unlock()
	if before != "" {
		j.log.Info("the journal is whole again")
		j.onTrouble()
	}
}

// state is what the ledger's status tells; nil when there is nothing to tell.
func (j *journal) state() *ledger.Journal {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lost == 0 && j.past.skipped == 0 && j.problem == "" {
		return nil
	}
	return &ledger.Journal{Lost: j.lost, Skipped: j.past.skipped, Problem: j.problem}
}

// journalEndTime bounds the last sync.
const journalEndTime = 2 * time.Second

// close says that agentd ends by itself, and waits a moment for the disk. What is added later is lost. Close it once.
func (j *journal) close() {
	j.add(journalRecord{Closed: &closedRecord{Time: j.now().UTC()}}, true)
	j.mu.Lock()
	j.ending = true
	j.mu.Unlock()
	signal(j.wake)
	done := make(chan struct{})
	go func() {
		defer close(done)
		j.writers.Wait()
		close(j.stop)
		j.tenders.Wait()
	}()
	timer := time.NewTimer(journalEndTime)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		// The write that hangs ends with the process.
		j.log.Warn("the journal's disk does not answer")
	}
}

// folder syncs the folder of the journal, so that the exchange of its file lasts.
func (j *journal) folder() error {
	dir, err := os.Open(filepath.Dir(j.path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

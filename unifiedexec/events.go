package unifiedexec

import "sync"

// events calls the callbacks in order, from one goroutine at a time: whoever put the first of them.
type events struct {
	mu         sync.Mutex
	queue      []func()
	delivering bool
}

// put queues a call. When it returns true, nobody is calling what is queued, and the caller has to let deliver do it.
func (e *events) put(call func()) (deliver bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queue = append(e.queue, call)
	deliver = !e.delivering
	e.delivering = true
	return deliver
}

// deliver calls what is queued until there is nothing.
func (e *events) deliver() {
	for {
		e.mu.Lock()
		if len(e.queue) == 0 {
			e.delivering = false
			e.queue = nil
			e.mu.Unlock()
			return
		}
		call := e.queue[0]
		e.queue = e.queue[1:]
		e.mu.Unlock()
		call()
	}
}

package unifiedexec

import "sync"

// events calls the callbacks in order, from one goroutine that lives while there is something to tell.
type events struct {
	mu      sync.Mutex
	queue   []func()
	running bool
}

// send queues a call; spawn runs the goroutine.
func (e *events) send(spawn func(func()), call func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queue = append(e.queue, call)
	if !e.running {
		e.running = true
		spawn(e.deliver)
	}
}

func (e *events) deliver() {
	for {
		e.mu.Lock()
		if len(e.queue) == 0 {
			e.running = false
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

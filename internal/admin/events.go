package admin

import (
	"net/http"
	"time"
)

const (
	maxSubscribers = 64
	// An event that is not taken for so long ends the connection, which gives
	// its place to another.
	eventDeadline = 10 * time.Second
)

// getEvents sends how things stand, at once with the last minute and then each
// second, which is also what tells the page that the connection lives.
func (a *Admin) getEvents(w http.ResponseWriter, r *http.Request) {
	header := func() {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("X-Accel-Buffering", "no") // NGINX in front would hold the events back
		w.Header().Set("Connection", "close")     // the write deadline would outlive the answer
		w.WriteHeader(http.StatusOK)
	}
	if r.Method == http.MethodHead {
		header()
		return
	}
	events, first := a.subscribe()
	if events == nil {
		w.Header().Set("Retry-After", "5")
		writeError(w, http.StatusServiceUnavailable, "too many listen to the events, or the proxy stops; close a live page, or try again")
		return
	}
	defer a.unsubscribe(events)
	header()

	control := http.NewResponseController(w)
	send := func(data []byte) error {
		// A writer that knows no deadline is not one that blocks.
		_ = control.SetWriteDeadline(time.Now().Add(eventDeadline))
		if _, err := w.Write(data); err != nil {
			return err
		}
		return control.Flush()
	}
	for data, ok := first, true; ok; {
		if send(data) != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case data, ok = <-events:
		}
	}
}

// subscribe returns where events come, and the one to begin with; nil when
// there is no place.
func (a *Admin) subscribe() (events chan []byte, first []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.subscribers == nil || len(a.subscribers) >= maxSubscribers {
		return nil, nil
	}
	events = make(chan []byte, 1)
	a.subscribers[events] = struct{}{}
	return events, event(a.lastMinuteLocked())
}

func (a *Admin) unsubscribe(events chan []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.subscribers, events)
}

// sendLocked gives every subscriber the event, in place of one that it has not
// taken yet: a slow one misses some and never waits for, nor makes wait.
func (a *Admin) sendLocked(data []byte) {
	for events := range a.subscribers {
		select {
		case <-events:
		default:
		}
		events <- data // has room: only this sends, under the lock
	}
}

func (a *Admin) endEvents() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for events := range a.subscribers {
		close(events)
	}
	a.subscribers = nil
}

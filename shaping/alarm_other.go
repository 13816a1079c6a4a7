//go:build !linux

package shaping

import (
	"sync"
	"time"
)

// newBell returns a bell that is one timer, and as exact as those are.
func newBell(base time.Time, ring func()) (bell, error) {
	var once sync.Mutex // at a time
	timer := time.AfterFunc(never, func() {
		once.Lock()
		defer once.Unlock()
		ring()
	})
	return bell{
		set: func(at int64) { timer.Reset(time.Duration(at) - time.Since(base)) },
		close: func() error {
			timer.Stop()
			once.Lock() // waits for a ring that is at work; a later one finds nobody
			defer once.Unlock()
			return nil
		},
	}, nil
}

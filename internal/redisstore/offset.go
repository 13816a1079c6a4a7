package redisstore

import (
	"sync"
	"time"
)

// An offset bounds how far this process's clock is ahead of the server's, by the
// calls that tell the server's time: when an answer is here, the server's clock
// shows at least what is in it. The least of these bounds is the best; it fades,
// as clocks drift, and gives way at once to what contradicts it, as the server's
// clock was set, or it is another server. All in nanoseconds.
//
// An instant of the server's plus the bound is never early here, and late by no
// more than the quickest answer of late took.
type offset struct {
	mu   sync.Mutex
	most int64 // ours − the server's is no more
	at   int64 // when that was known; 0: never
	trip int64 // how long an answer takes: the most, fading by an eighth with each
}

// drift is what two clocks may part by, as a part of the time: NTP slews by no
// more than 500 millionths.
const drift = 2000

// note takes note of a call that began and ended at our instants, and of the
// server's clock in between. It returns the bound, or with own the one that this
// call gives, and how long an answer takes.
func (o *offset) note(began, ended, server int64, own bool) (most, trip int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.trip = max(ended-began, o.trip-o.trip/8)
	best := o.most + (ended-o.at)/drift
	if this := ended - server; o.at == 0 || this <= best || began-server > best {
		o.most, o.at, best = this, ended, this
	} else if own {
		best = this
	}
	return best, o.trip
}

// answers is how long an answer takes, as far as is known.
func (o *offset) answers() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Duration(o.trip)
}

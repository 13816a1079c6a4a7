package admin

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

// A Tally is a proxy.Observer that counts what the limits decided, and keeps
// the last refusals, for the API and the live page. It knows only the limits that Configure names, so no
// request can make it grow. The zero Tally is ready for use, and safe for
// concurrent use.
type Tally struct {
	configuring sync.Mutex // one Configure at a time
	limits      atomic.Pointer[map[string]*count]
}

var _ proxy.Observer = (*Tally)(nil)

// reasons are those with which a limit rejects.
var reasons = [...]limiter.Reason{
	limiter.ReasonLimit, limiter.ReasonQueueFull, limiter.ReasonMaxWait, limiter.ReasonMissingKey,
	limiter.ReasonPaused, limiter.ReasonShutdown, limiter.ReasonStoreDown,
}

type count struct {
	admitted, queued, gone atomic.Uint64
	rejected               [len(reasons)]atomic.Uint64
	waits                  [waitBuckets]atomic.Uint64 // of those that were let go
	refusals               refusals
}

// Configure names the limits to count, before they are asked. Those that were
// there before go on counting; the others are forgotten.
func (t *Tally) Configure(limits []string) {
	t.configuring.Lock()
	defer t.configuring.Unlock()
	next := make(map[string]*count, len(limits))
	for _, name := range limits {
		if next[name] = t.count(name); next[name] == nil {
			next[name] = new(count)
		}
	}
	t.limits.Store(&next)
}

func (t *Tally) count(limit string) *count {
	if known := t.limits.Load(); known != nil {
		return (*known)[limit]
	}
	return nil
}

// Decided implements proxy.Observer.
func (t *Tally) Decided(route string, decisions []limiter.Decision) {
	for i := range decisions {
		d := &decisions[i]
		c := t.count(d.Policy)
		if c == nil || d.Peeked {
			continue
		}
		switch d.Outcome() {
		case limiter.OutcomeAdmitted:
			c.admitted.Add(1)
			c.waits[0].Add(1)
		case limiter.OutcomeQueued:
			c.queued.Add(1)
			c.waits[waitBucket(d.Waited)].Add(1)
		case limiter.OutcomeGone:
			c.gone.Add(1)
		case limiter.OutcomeRejected:
			for r := range reasons {
				if reasons[r] == d.Reason {
					c.rejected[r].Add(1)
					c.refusals.add(route, d.Reason, d.DryRun, time.Now())
				}
			}
		}
	}
}

// Done implements proxy.Observer; limits have nothing to do with it.
func (t *Tally) Done(*proxy.Event) {}

// decisions are the counts of one limit; zero if it is not known.
func (t *Tally) decisions(limit string) decisionsJSON {
	d := decisionsJSON{Rejected: make(map[limiter.Reason]uint64)}
	c := t.count(limit)
	if c == nil {
		return d
	}
	d.Admitted, d.Queued, d.Gone = c.admitted.Load(), c.queued.Load(), c.gone.Load()
	for r := range reasons {
		if n := c.rejected[r].Load(); n > 0 {
			d.Rejected[reasons[r]] = n
		}
	}
	return d
}

// waits counts the waits of one limit by their length.
func (t *Tally) waits(limit string) (counts [waitBuckets]uint64) {
	if c := t.count(limit); c != nil {
		for b := range counts {
			counts[b] = c.waits[b].Load()
		}
	}
	return counts
}

// refusals are the last of one limit, the newest first.
func (t *Tally) refusals(limit string) []refusalJSON {
	if c := t.count(limit); c != nil {
		return c.refusals.newest()
	}
	return []refusalJSON{}
}

package shaping

import (
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A SharedStore keeps the budgets of limits where several processes share them.
// It is safe for concurrent use.
type SharedStore interface {
	// Take decides the charges at one instant and takes all of them, or none if
	// one does not fit, as of limiter.Memory.Take. It always answers, within a
	// time that it bounds itself: a store that cannot be reached has its own way
	// of deciding. A decision without a Policy was not made, as another limit
	// refused. What is held can be given back by Return.
	Take(into []limiter.Decision, charges []SharedCharge) (decisions []limiter.Decision, held bool)
	// Look says what Take of each charge alone would decide, and takes nothing.
	// It is not ok if that cannot be known now.
	Look(into []limiter.Decision, charges []SharedCharge) (_ []limiter.Decision, ok bool)
	// Return gives back what a Take took whose decisions bear the instant at.
	Return(charges []SharedCharge, at time.Time)
}

// A SharedLimit is a limit of a SharedStore.
type SharedLimit interface {
	Policy() limiter.Policy
}

// A SharedCharge asks Cost of the budget of Key at Limit, as a limiter.Charge.
type SharedCharge struct {
	Limit SharedLimit
	Key   string
	Cost  int64
}

// SharedPlaces are a bound on how many requests are unfinished, over several
// processes. They are safe for concurrent use.
type SharedPlaces interface {
	Policy() Policy
	// Acquire takes a place for key, if one is free. It always answers, as
	// SharedStore.Take does. A release that is not nil gives the place back, and
	// is called once.
	Acquire(key string) (d limiter.Decision, release func())
	// Look says how things stand. It is not ok if that cannot be known now.
	Look(key string) (d limiter.Decision, ok bool)
}

// Sharing returns the same Chain, whose Links may be limits of the store.
func (c *Chain) Sharing(store SharedStore) *Chain {
	d := *c
	d.shared = store
	return &d
}

func (w *walk) sharedCharge(i int) SharedCharge {
	key := &w.req.Keys[i]
	return SharedCharge{Limit: w.chain.links[i].Shared, Key: key.Value, Cost: key.Charge()}
}

// rejectShared takes from all binding limits of the store, or from none. They are
// asked after those in memory, whose refusal costs no call.
func (w *walk) rejectShared() bool {
	var charges []SharedCharge
	var links []int
	for i, link := range w.chain.links {
		if link.Shared != nil && w.asked(i) && !link.Shared.Policy().DryRun {
			charges = append(charges, w.sharedCharge(i))
			links = append(links, i)
		}
	}
	if len(charges) == 0 {
		return true
	}
	ok := true
	decisions, held := w.chain.shared.Take(make([]limiter.Decision, 0, len(charges)), charges)
	for n, d := range decisions {
		w.all[links[n]] = d
		if d.Policy != "" && !d.Allowed {
			ok = false
		} else if d.Policy != "" {
			w.since = d.At
		}
	}
	if ok && held {
		w.shared = charges
	}
	return ok
}

// rejectSharedDry asks the limits of the store that are in dry run, each for
// itself.
func (w *walk) rejectSharedDry() {
	for i, link := range w.chain.links {
		if link.Shared != nil && w.asked(i) && link.Shared.Policy().DryRun {
			charge := []SharedCharge{w.sharedCharge(i)}
			decisions, held := w.chain.shared.Take(nil, charge)
			if w.all[i] = decisions[0]; held {
				w.dry = append(w.dry, rehearsed{charge, decisions[0].At})
			}
		}
	}
}

// rehearsed is what a limit in dry run has been charged.
type rehearsed struct {
	charge []SharedCharge
	since  time.Time
}

// giveBackShared undoes the charges on the store.
func (w *walk) giveBackShared() {
	if len(w.shared) > 0 {
		w.chain.shared.Return(w.shared, w.since)
	}
	for _, r := range w.dry {
		w.chain.shared.Return(r.charge, r.since)
	}
}

// lookShared brings the state in those decisions of the store that which picks up
// to date, in one call.
func (w *walk) lookShared(which func(*limiter.Decision) bool) {
	var charges []SharedCharge
	var links []int
	for i, link := range w.chain.links {
		if link.Shared != nil && w.asked(i) && which(&w.all[i]) {
			charges = append(charges, w.sharedCharge(i))
			links = append(links, i)
		}
	}
	if len(charges) == 0 {
		return
	}
	if now, ok := w.chain.shared.Look(nil, charges); ok {
		for n := range now {
			see(&w.all[links[n]], &now[n])
		}
	}
}

// takePlaces takes a place of each shared limit that has them, those in dry run
// last. It is not ok if one has none; what is held is then to be given back.
func (w *walk) takePlaces() bool {
	for _, dry := range [...]bool{false, true} {
		for i, link := range w.chain.links {
			if link.Places == nil || !w.asked(i) || link.Places.Policy().DryRun != dry {
				continue
			}
			d, release := link.Places.Acquire(w.req.Keys[i].Value)
			if w.all[i] = d; release != nil {
				w.shares = append(w.shares, release)
			}
			if !d.Allowed && !dry {
				return false
			}
		}
	}
	return true
}

// peekShared is how limit i of the store stands; no more than its name if that
// cannot be known now.
func (w *walk) peekShared(i int) limiter.Decision {
	if places := w.chain.links[i].Places; places != nil {
		d, _ := places.Look(w.req.Keys[i].Value)
		return d
	}
	if d, ok := w.chain.shared.Look(nil, []SharedCharge{w.sharedCharge(i)}); ok {
		return d[0]
	}
	p := w.chain.links[i].Shared.Policy()
	return limiter.Decision{Policy: p.Name, Status: p.Status, At: time.Now()}
}

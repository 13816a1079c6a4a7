package redisstore

import (
	"cmp"
	"context"
	_ "embed"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

//go:embed places.lua
var placesText string

var placesScript = rueidis.NewLuaScript(placesText)

// A place is believed for as long as a proxy that is quiet, and kept with each
// beat. At most keptAtOnce are kept in one call.
const (
	leaseFor   = quietFor
	keptAtOnce = 500
	keepers    = 32 // calls at once that keep places
	mostLost   = 1024
)

// Places are how many requests may be unfinished at once, over all proxies. A
// place that is held is kept with each beat; if its proxy dies it is free after
// leaseFor. They are safe for concurrent use, and shaping.SharedPlaces.
type Places struct {
	store *Store
	now   atomic.Pointer[placing]

	mu      sync.Mutex
	held    map[string]*holding // by the key on the server
	n       int                 // how many are held, over all keys
	dropped bool                // the last that is given back ends it
	lost    map[string][]string // places that the server may believe though nobody holds them, mostLost at most
	nLost   int
}

type placing struct {
	Definition
	shaping.Policy
	before, after string
}

func (set *placing) key(s *Store, name string) string {
	return set.before + s.hashOf(set.CountedBy, name) + set.after
}

// A holding is the places of one key that this proxy holds, by name.
type holding struct {
	names   map[string]struct{}
	pending int // calls that may take one
}

var _ shaping.SharedPlaces = (*Places)(nil)

// NewPlaces returns p.MaxInFlight places for each key; p must have no rate and no
// queue.
func (s *Store) NewPlaces(p shaping.Policy, def Definition) (*Places, error) {
	l := &Places{store: s, held: map[string]*holding{}}
	if err := l.Adopt(p, def); err != nil {
		return nil, err
	}
	s.sharing.Lock()
	defer s.sharing.Unlock()
	s.places[l] = struct{}{}
	return l, nil
}

// Adopt changes how many places there are. What is held stays held.
func (l *Places) Adopt(p shaping.Policy, def Definition) error {
	if err := p.Validate(); err != nil {
		return err
	}
	p.Status = cmp.Or(p.Status, http.StatusTooManyRequests)
	set := &placing{Definition: def, Policy: p, before: l.store.options.Prefix + ":{", after: "}:" + p.Name + ":p"}
	l.now.Store(set)
	return nil
}

// Drop ends the limit. Places that are held are kept until they are given back.
func (l *Places) Drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropped = true
}

// Policy returns what is in force.
func (l *Places) Policy() shaping.Policy { return l.now.Load().Policy }

// InFlight is how many places this proxy holds, over all keys.
func (l *Places) InFlight() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

// Keys is of how many keys this proxy holds places.
func (l *Places) Keys() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.held)
}

// Acquire takes a place, if one is free. What is not nil gives it back, once.
func (l *Places) Acquire(name string) (d limiter.Decision, release func()) {
	set, s := l.now.Load(), l.store
	key := set.key(s, name)
	place := s.id + strconv.FormatUint(s.serial.Add(1), 36)

	l.mu.Lock()
	h := l.held[key]
	if h == nil {
		h = &holding{names: map[string]struct{}{}}
		l.held[key] = h
	}
	h.pending++
	l.mu.Unlock()

	taken, used, err := s.askPlaces("take", key, set.MaxInFlight, place)
	l.mu.Lock()
	defer l.mu.Unlock()
	h.pending--
	d = l.decision(set, used)
	switch {
	case err == nil:
		d.Allowed = taken
	case set.Down == Open:
		d.Allowed, d.Remaining = true, d.Limit
	case set.Down == Closed:
		d.Reason, d.Status, d.Remaining = limiter.ReasonStoreDown, http.StatusServiceUnavailable, 0
	default:
		part := max(1, set.MaxInFlight/s.Proxies())
		d.Allowed = len(h.names) < part
		d.Remaining = int64(max(0, part-len(h.names)-1))
	}
	if !d.Allowed {
		d.Reason = cmp.Or(d.Reason, limiter.ReasonLimit)
		// When a place becomes free, nobody knows.
		d.RetryAfter, d.ResetAfter = time.Second, time.Second
		if l.tidyLocked(key, h); err != nil {
			l.loseLocked(key, place) // it may have been taken all the same
		}
		return d, nil
	}
	h.names[place] = struct{}{}
	l.n++
	return d, func() { l.release(key, place) }
}

func (l *Places) release(key, place string) {
	l.mu.Lock()
	if h := l.held[key]; h != nil {
		delete(h.names, place)
		l.n--
		l.tidyLocked(key, h)
	}
	l.mu.Unlock()
	l.giveBack(key, place)
}

// giveBack tells the server that nobody holds some places, or the next beat does. If
// that fails too, it believes them until their lease is over.
func (l *Places) giveBack(key string, names ...string) {
	if _, _, err := l.store.askPlaces("return", key, 0, names...); err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.loseLocked(key, names...)
	}
}

func (l *Places) loseLocked(key string, names ...string) {
	if l.nLost+len(names) > mostLost {
		return
	}
	if l.lost == nil {
		l.lost = map[string][]string{}
	}
	l.lost[key] = append(l.lost[key], names...)
	l.nLost += len(names)
}

// found are those that were lost until now.
func (l *Places) found() map[string][]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.lost
	l.lost, l.nLost = nil, 0
	return all
}

// gone are those of some that nobody holds.
func (l *Places) gone(key string, names []string) (gone []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.held[key]
	for _, name := range names {
		if h == nil {
			gone = append(gone, name)
		} else if _, held := h.names[name]; !held {
			gone = append(gone, name)
		}
	}
	return gone
}

func (l *Places) tidyLocked(key string, h *holding) {
	if len(h.names) == 0 && h.pending == 0 {
		delete(l.held, key)
	}
}

// Look says how many places are free, and takes none.
func (l *Places) Look(name string) (limiter.Decision, bool) {
	set, s := l.now.Load(), l.store
	key := set.key(s, name)
	_, used, err := s.askPlaces("look", key, math.MaxInt32)
	d := l.decision(set, used)
	if d.Allowed, d.Peeked = d.Remaining > 0, true; !d.Allowed {
		d.Reason, d.RetryAfter, d.ResetAfter = limiter.ReasonLimit, time.Second, time.Second
	}
	return d, err == nil
}

func (l *Places) decision(set *placing, used int64) limiter.Decision {
	most := int64(set.MaxInFlight)
	return limiter.Decision{
		Policy: set.Name, Status: set.Status, DryRun: set.DryRun, Limit: most, Remaining: max(0, most-used), At: time.Now(),
	}
}

// askPlaces runs the script.
func (s *Store) askPlaces(mode, key string, most int, names ...string) (taken bool, used int64, err error) {
	err = s.within(key, func(ctx context.Context, client rueidis.Client) error {
		args := append([]string{mode, micro(leaseFor), strconv.Itoa(most)}, names...)
		n, err := placesScript.Exec(ctx, client, []string{key}, args).AsIntSlice()
		if err != nil {
			return err
		}
		if len(n) != 3 || n[0] < earliest || n[0] > latest || n[1] < 0 || n[1] > 1 || n[2] < 0 {
			return errAnswer
		}
		taken, used = n[1] == 1, n[2]
		return nil
	})
	return taken, used, err
}

// keep has the server believe all places that are held for a lease more. A server
// that was flushed learns of them by that. Where that fails, the circuit tells,
// and the next beat tries again.
func (s *Store) keep() {
	var all []*Places
	s.sharing.Lock()
	for l := range s.places {
		if l.over() {
			delete(s.places, l)
		} else {
			all = append(all, l)
		}
	}
	s.sharing.Unlock()
	var calls sync.WaitGroup
	defer calls.Wait()
	free := make(chan struct{}, keepers)
	each := func(of map[string][]string, f func(key string, names []string)) {
		for key, names := range of {
			for some := range slices.Chunk(names, keptAtOnce) {
				free <- struct{}{}
				calls.Go(func() {
					f(key, some)
					<-free
				})
			}
		}
	}
	for _, l := range all {
		each(l.found(), func(key string, names []string) { l.giveBack(key, names...) })
		each(l.names(), l.keep)
	}
}

func (l *Places) keep(key string, names []string) {
	_, _, _ = l.store.askPlaces("keep", key, 0, names...)
	// One that was given back meanwhile may so have come back.
	if gone := l.gone(key, names); len(gone) > 0 {
		l.giveBack(key, gone...)
	}
}

func (l *Places) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped && l.n == 0
}

func (l *Places) names() map[string][]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[string][]string, len(l.held))
	for key, h := range l.held {
		for name := range h.names {
			all[key] = append(all[key], name)
		}
	}
	return all
}

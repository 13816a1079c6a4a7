package redisstore

import (
	"context"
	_ "embed"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

//go:embed leases.lua
var leasesBody string

const (
	// lostFor is for how long nothing is granted where the server has lost what it
	// knew: by then each proxy has said again what it holds.
	lostFor = beatEvery + 250*time.Millisecond
	// What a line wants is believed for twice as long as until it asks again, and for
	// lateFor, by which it may be late.
	lateFor = 100 * time.Millisecond
)

// Leases are the places of a queue whose lines are in several proxies. Each proxy says
// how many it holds and wants, so what it says last is all that the server has to know
// of it; if it dies, its places are free after leaseFor. They are safe for
// concurrent use, and shaping.SharedLeases.
type Leases struct {
	store   *Store
	id      string // of these among all that name the same places
	now     atomic.Pointer[placing]
	dropped atomic.Bool
}

var _ shaping.SharedLeases = (*Leases)(nil)

// NewLeases returns p.MaxInFlight places for each key, for a queue.
func (s *Store) NewLeases(p shaping.Policy, def Definition) (*Leases, error) {
	l := &Leases{store: s, id: s.id + strconv.FormatUint(s.serial.Add(1), 36)}
	return l, l.Adopt(p, def)
}

// Watch has the places that q holds be kept with each beat, and the other proxies be
// told how many wait in it, and with Closed those who wait there, when the server is lost.
func (l *Leases) Watch(q *shaping.Shaper) {
	l.store.watch(q, func(w *watched) { w.leases = l })
}

// Drop ends that when nobody holds a place or waits for one any more.
func (l *Leases) Drop() { l.dropped.Store(true) }

// Adopt changes how many places there are. What is held stays held.
func (l *Leases) Adopt(p shaping.Policy, def Definition) error {
	if err := p.Validate(); err != nil {
		return err
	}
	l.now.Store(&placing{Definition: def, Policy: p, before: l.store.options.Prefix + ":{", after: "}:" + p.Name + ":h"})
	return nil
}

func (l *Leases) about() (name string, down Down) {
	set := l.now.Load()
	return set.Name, set.Down
}

// Ask implements shaping.SharedLeases. A server that answers after the timeout, or not
// at all, is not waited for again.
func (l *Leases) Ask(name string, a shaping.LeaseAsk) shaping.Leases {
	set, s := l.now.Load(), l.store
	key := set.key(s, name)
	began := time.Now()
	for range opensAfter {
		g, err := l.ask(set, key, &a)
		if err == nil {
			return g
		}
		if !s.circuit.of(key).closed.Load() || harmless(err) || time.Since(began) >= s.options.Timeout {
			break
		}
	}
	switch g := (shaping.Leases{Alone: probeEvery, Places: set.MaxInFlight}); set.Down {
	case Closed:
		return shaping.Leases{Reason: limiter.ReasonStoreDown}
	case Local:
		g.Places = max(1, set.MaxInFlight/s.Proxies())
		return g
	default:
		return g
	}
}

func (l *Leases) ask(set *placing, key string, a *shaping.LeaseAsk) (g shaping.Leases, err error) {
	s := l.store
	lost := time.Duration(0)
	if a.Known {
		lost = lostFor
	}
	err = s.within(key, func(ctx context.Context, client rueidis.Client) error {
		args := []string{
			l.id, strconv.FormatUint(s.serial.Add(1), 10), micro(leaseFor), micro(2*a.Every + lateFor),
			strconv.Itoa(set.MaxInFlight), strconv.Itoa(a.Held), strconv.Itoa(a.More), micro(lost),
		}
		if s.clock != nil {
			args = append(args, strconv.FormatInt(s.clock(), 10))
		}
		began := s.sinceBase()
		n, err := s.leasing.Exec(ctx, client, []string{key}, args).AsIntSlice()
		if err != nil {
			return err
		}
		if len(n) != 5 || n[0] < earliest || n[0] > latest || n[1] < 0 || n[1] > int64(a.More) || n[2] < 0 || n[2] > math.MaxInt32 || n[3] < 0 || n[3] > math.MaxInt32 {
			return errAnswer
		}
		_, trip := s.offset.note(began, s.sinceBase(), n[0]*1000, s.options.Cluster)
		g = shaping.Leases{Granted: int(n[1]), Free: int(n[2]), Keep: int(n[3]), Near: n[4] == 1, Trip: time.Duration(trip)}
		return nil
	})
	return g, err
}

// keepLeases has the server believe for a lease more what the queues hold, or learn of
// it if it was flushed.
func (s *Store) keepLeases() {
	for q, w := range s.watched() {
		if w.leases == nil {
			continue
		}
		q.RenewLeases(beatEvery/2, keepers)
		if !w.leases.dropped.Load() {
			continue
		}
		if n := q.Snapshot(); n.Depth == 0 && n.InFlight == 0 {
			s.watch(q, func(w *watched) { w.leases = nil })
		}
	}
}

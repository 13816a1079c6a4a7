package redisstore

import (
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/redistest"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A holder is what the script is to know of a proxy.
type holder struct {
	held, wants        int
	until, wish, since int64
}

// TestLeasesAgainstReference: on a real server, whatever several proxies say and
// want, and however long they are quiet, each place that is granted is the one that
// goes to whoever holds the fewest, one by one, and of several to the one whose turn
// is the oldest.
func TestLeasesAgainstReference(t *testing.T) {
	server := redistest.Start(t)
	o := Options{Address: []string{server.Address()}, Prefix: "walk", Timeout: 10 * time.Second, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	now := time.Date(2026, 11, 30, 19, 16, 5, 123456000, time.UTC).UnixMicro()
	s := build(o, toldTime)
	s.clock = func() int64 { return now }
	s.circuit.start()
	t.Cleanup(s.Close)
	await(t, "the store comes up", s.Up)
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		most := 1 + r.IntN(12)
		var all []*Leases
		for range 2 + r.IntN(3) {
			l, err := s.NewLeases(shaping.Policy{Name: "q", MaxInFlight: most, Queue: 9}, Definition{CountedBy: "global", Down: Closed})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, l)
		}
		slices.SortFunc(all, func(a, b *Leases) int { return strings.Compare(a.id, b.id) })
		state := make([]holder, len(all))
		key := strings.Repeat("k", int(seed)+1)
		for step := range 300 {
			now += 1 + r.Int64N(60_000)
			if r.IntN(40) == 0 {
				now += r.Int64N(6_000_000)
			}
			for i := range state { // who was quiet is forgotten
				h := &state[i]
				if h.until <= now {
					h.held = 0
				}
				if h.wish <= now {
					h.wants = 0
				}
			}
			i := r.IntN(len(all))
			me := &state[i]
			if me.held == 0 && me.wants == 0 {
				me.since = now
			}
			a := shaping.LeaseAsk{Held: r.IntN(me.held + 1), More: r.IntN(3) * r.IntN(most), Every: 20 * time.Millisecond}
			*me = holder{a.Held, a.More, now + leaseFor.Microseconds(), now + (2*a.Every + lateFor).Microseconds(), me.since}
			trial := slices.Clone(state)
			free := most
			for _, h := range trial {
				free -= h.held
			}
			for ; free > 0; free-- {
				next := -1
				for j, h := range trial {
					if h.wants > 0 && (next < 0 || h.held < trial[next].held || h.held == trial[next].held && h.since < trial[next].since) {
						next = j
					}
				}
				if next < 0 {
					break
				}
				trial[next].held++
				trial[next].wants--
			}
			want := shaping.Leases{Granted: trial[i].held - a.Held, Free: max(0, free), Keep: most}
			me.held, me.wants = trial[i].held, trial[i].wants
			if want.Granted > 0 {
				me.since = now
			}
			unmet, sum := false, 0
			for j, h := range trial {
				unmet = unmet || j != i && h.wants > 0
				want.Near = want.Near || j != i && h.held > state[j].held && me.wants > 0
				sum += state[j].held
				if o := state[j]; j != i && o.held > 0 && (o.held > me.held || o.wants == 0) {
					want.Near = true
				}
			}
			for j, h := range state {
				if j != i && unmet && h.wants > 0 {
					want.Keep = min(want.Keep, h.held)
				}
			}
			if sum > most {
				t.Fatalf("seed %d, step %d: the reference is wrong: %+v", seed, step, state)
			}
			got := all[i].Ask(key, a)
			if got.Trip = 0; got != want {
				t.Fatalf("seed %d, step %d: %d of %d places for %+v of %+v: got %+v, want %+v", seed, step, i, most, a, state, got, want)
			}
		}
	}
}

// TestLeasesKept: what is said in a call that was overtaken counts for nothing; a
// server that has lost what it knew grants nothing until all have said it again;
// and the places of a proxy that is quiet are free when its lease is over.
func TestLeasesKept(t *testing.T) {
	server := redistest.Start(t)
	now := time.Date(2026, 11, 30, 19, 16, 5, 0, time.UTC).UnixMicro()
	s := build(Options{Address: []string{server.Address()}, Prefix: "kept", Timeout: 10 * time.Second}, toldTime)
	s.clock = func() int64 { return now }
	s.circuit.start()
	t.Cleanup(s.Close)
	await(t, "the store comes up", s.Up)
	var all []*Leases
	for range 3 {
		l, err := s.NewLeases(shaping.Policy{Name: "q", MaxInFlight: 5, Queue: 9}, Definition{CountedBy: "global", Down: Closed})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	a, b, c := all[0], all[1], all[2]
	ask := func(l *Leases, held, more, granted int) {
		t.Helper()
		if got := l.Ask("k", shaping.LeaseAsk{Held: held, More: more, Known: held > 0, Every: time.Millisecond}); got.Granted != granted || got.Reason != limiter.ReasonNone {
			t.Errorf("granted %+v, want %d", got, granted)
		}
	}
	ask(a, 0, 2, 2)
	ask(b, 0, 2, 2)
	number := s.serial.Load()
	s.serial.Store(3) // as of a call that was sent before
	if got := a.Ask("k", shaping.LeaseAsk{}); got.Reason != limiter.ReasonStoreDown {
		t.Errorf("%+v", got)
	}
	s.serial.Store(number)
	ask(c, 0, 2, 1)
	now += time.Second.Microseconds()
	server.Must("FLUSHALL")
	ask(a, 2, 1, 0) // the server is told that it has forgotten
	ask(c, 0, 1, 0)
	now += (lostFor / 2).Microseconds()
	ask(b, 2, 1, 0)
	ask(c, 1, 4, 0)
	now += (lostFor).Microseconds()
	ask(b, 2, 0, 0)
	ask(c, 1, 4, 0) // all five are held
	ask(a, 1, 0, 0)
	ask(c, 1, 4, 1)
	now += (leaseFor - time.Second).Microseconds()
	ask(a, 1, 0, 0)
	ask(c, 2, 4, 0)
	now += time.Second.Microseconds()
	ask(c, 2, 4, 2) // b was quiet
	// A clock that is set back by an hour keeps nothing for an hour.
	now -= time.Hour.Microseconds()
	ask(c, 0, 5, 4)
	now += leaseFor.Microseconds()
	ask(c, 4, 1, 1)
	ask(c, 0, 0, 0)
	// Nor does what a proxy wanted that has died since.
	ask(a, 0, 3, 3)
	ask(b, 0, 9, 2)
	now -= (time.Hour / 2).Microseconds()
	ask(a, 0, 0, 0)
	now += leaseFor.Microseconds()
	ask(c, 0, 5, 5)
	ask(c, 0, 0, 0)
	if keys := server.Must("KEYS", "kept:*:q:h"); keys != "" {
		t.Errorf("left behind: %s", server.Must("HGETALL", keys))
	}
	server.Must("SET", a.now.Load().before+s.hashOf("global", "x")+a.now.Load().after, "nonsense")
	if got := a.Ask("x", shaping.LeaseAsk{}); got.Reason != limiter.ReasonStoreDown {
		t.Errorf("%+v of what is not ours", got)
	}
	if err := a.Adopt(shaping.Policy{Name: "q", Queue: 9}, Definition{}); err == nil {
		t.Error("a queue without a bound was adopted")
	}
}

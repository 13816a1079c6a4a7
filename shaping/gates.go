package shaping

import (
	"time"

	"github.com/shapeproxy/shapeproxy/internal/keyed"
)

// Gates are those of one upstream: one for everybody, or where the upstream
// counts each of its clients by itself, one for each key. It is safe for
// concurrent use, and nil Gates are always open.
type Gates struct {
	all   *Gate             // nil: by key
	byKey *keyed.Map[*Gate] // of keys that were asked for of late
}

// NewGates returns one gate for everybody.
func NewGates() *Gates { return &Gates{all: NewGate()} }

// NewKeyedGates returns a gate for each key, of which it remembers so many at
// once: never more, and first to be forgotten are those that are open and
// before which nobody waits. A key for which there is no room has no gate.
func NewKeyedGates(maxKeys int) *Gates {
	return &Gates{byKey: keyed.New(maxKeys, func(g **Gate, _ int64) int64 { return (*g).rank() })}
}

// Of is the gate of a key; nil for nil Gates, or if there is no room for it.
func (g *Gates) Of(key string) *Gate {
	switch {
	case g == nil:
		return nil
	case g.all != nil:
		return g.all
	}
	shard, h := g.byKey.Shard(key)
	shard.Lock()
	defer shard.Unlock()
	p := shard.Get(h)
	if p == nil {
		var ok bool
		if p, ok = shard.Put(h, time.Now().UnixNano()); !ok {
			return nil
		}
		*p = NewGate()
	}
	return *p
}

// Keyed reports whether there is a gate for each key.
func (g *Gates) Keyed() bool { return g != nil && g.byKey != nil }

// Each calls f for every gate.
func (g *Gates) Each(f func(*Gate)) {
	switch {
	case g == nil:
	case g.all != nil:
		f(g.all)
	default:
		g.byKey.Each(func(one **Gate) bool {
			f(*one)
			return true
		})
	}
}

// rank says how far the gate is from being as good as new; see keyed.New.
func (g *Gate) rank() int64 {
	g.mu.Lock()
	waiting := len(g.lines)
	g.mu.Unlock()
	_, until, closed := g.Closed()
	switch {
	case waiting > 0:
		return keyed.Pinned
	case !closed:
		return 0
	case until.IsZero():
		return keyed.Pinned - 1
	}
	return max(1, int64(time.Until(until)))
}

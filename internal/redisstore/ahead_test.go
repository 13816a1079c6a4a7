package redisstore

import (
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/redistest"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// TestAsManyInAdvance: a proxy whose answers take longer needs more departures in
// advance, and those that want some beside it then hold as many, so that all have
// equal shares.
func TestAsManyInAdvance(t *testing.T) {
	server := redistest.Start(t)
	far, near := join(t, server, hundred(100), Closed), join(t, server, hundred(100), Closed)
	far.offset.mu.Lock()
	far.offset.trip = int64(longAhead)
	far.offset.mu.Unlock()
	need := far.Departures.now.Load().ahead(longAhead)
	far.Ask("k", shaping.Ask{N: 1, More: true, After: time.Minute})
	if g := near.Ask("k", shaping.Ask{N: 1, More: true}); g.Rivals != 1 || g.Ahead < need {
		t.Errorf("%+v, want %d in advance", g, need)
	}
	far.Ask("k", shaping.Ask{N: 1})
	if g := near.Ask("k", shaping.Ask{N: 1, More: true}); g.Rivals != 0 {
		t.Errorf("%+v of one that wants no more", g)
	}
	// What is not ours, and what was said before the clock was set back.
	key := near.Departures.now.Load().key(near.Store, "k")
	server.Must("HSET", key, "x", "9999999999999999 40", "y", "nonsense", "z", "1")
	if g := near.Ask("k", shaping.Ask{N: 1, More: true}); g.Rivals != 0 || g.N != 1 || g.Alone != 0 {
		t.Errorf("%+v", g)
	}
	if n := server.Must("HLEN", key); n != "2" {
		t.Errorf("%s fields are left: %s", n, server.Must("HGETALL", key))
	}
}

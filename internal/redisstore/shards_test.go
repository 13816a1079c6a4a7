package redisstore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/redistest"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// TestShardLost: a master of three is killed, or frozen, and nobody takes its slots
// over. What stands on the others is decided as ever, what stands on it by
// store_down, no request waits for longer than the timeout, and there is one line
// when it is lost and one when it is back; whether it is the one that tells who lives
// or another.
func TestShardLost(t *testing.T) {
	type fault struct{ breakIt, mend func(*redistest.Server) }
	for name, f := range map[string]fault{
		"killed": {(*redistest.Server).Kill, (*redistest.Server).Restart},
		"frozen": {(*redistest.Server).Freeze, (*redistest.Server).Thaw},
	} {
		for _, home := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, the members are there %t", name, home), func(t *testing.T) {
				nodes := redistest.Redis.StartCluster(t)
				var all []string
				for _, n := range nodes {
					all = append(all, n.Address())
				}
				s, log := live(t, Options{Address: all, Cluster: true})
				await(t, "the store is found", s.Up)
				victim := nodes[slices.IndexFunc(nodes, func(n *redistest.Server) bool {
					return (n.Must("KEYS", s.members()) != "") == home
				})]
				l := limit(t, s, hour("l", 1000), Definition{CountedBy: "client-ip", Down: Closed})
				q, err := s.NewDepartures(hundred(10), Definition{CountedBy: "host", Down: Closed})
				if err != nil {
					t.Fatal(err)
				}
				set := l.now.Load()
				var there, elsewhere []string
				for i := range 60 {
					key := fmt.Sprint("client", i)
					if s.circuit.of(set.before+s.hashOf(set.CountedBy, key)+set.after).name == victim.Address() {
						there = append(there, key)
					} else {
						elsewhere = append(elsewhere, key)
					}
				}
				if len(there) < 5 || len(elsewhere) < 20 {
					t.Fatalf("%d keys on the one, %d on the others", len(there), len(elsewhere))
				}
				f.breakIt(victim)
				ask := func(key string) bool {
					began := time.Now()
					d := l.ask(key)
					if took := time.Since(began); took > 4*patience {
						t.Errorf("waited for %v", took)
					}
					return d.Allowed
				}
				await(t, "it is noticed", func() bool { ask(there[0]); return !s.Up() })
				for began := time.Now(); time.Since(began) < 4*probeEvery; {
					for _, key := range elsewhere {
						if !ask(key) {
							t.Fatal("one that stands elsewhere is not decided")
						}
					}
					for _, key := range there {
						if ask(key) {
							t.Fatal("one that stands there is let through")
						}
					}
				}
				lost, served := 0, 0
				for host := range 30 {
					if g := q.Ask(fmt.Sprint(host), shaping.Ask{N: 1}); g.N == 1 {
						served++
					} else {
						lost++
					}
				}
				if lost == 0 || served == 0 {
					t.Errorf("%d schedules are lost, %d are not", lost, served)
				}
				if n := log.count("level=ERROR"); n != 1 || log.count("shard="+victim.Address()) != 1 {
					t.Errorf("%d lines about it: %s", n, log.buf.String())
				}
				f.mend(victim)
				await(t, "it is found again", s.Up)
				await(t, "there is one line about it", func() bool { return log.count("the store answers again") == 1 })
				await(t, "what stands there is decided", func() bool { return !slices.ContainsFunc(there, func(key string) bool { return !ask(key) }) })
				if n := log.count("level=ERROR"); n != 1 {
					t.Errorf("%d lines about it: %s", n, strings.TrimSpace(log.buf.String()))
				}
			})
		}
	}
}

package redisstore

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/redistest"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/limiter/limitertest"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// TestCase44_Cluster (timebug/lua-resty-redis-ratelimit PR #9, redis/rueidis PR
// #974): the vectors on a cluster of three masters, several limits in a call; then
// limits whose keys spread over the nodes.
func TestCase44_Cluster(t *testing.T) { redistest.Each(t, cluster) }

func cluster(t *testing.T, engine redistest.Engine) {
	nodes := engine.StartCluster(t)
	// Cluster-aware clients are told one node and find the others.
	o := Options{Address: []string{nodes[0].Address()}, Cluster: true}
	t.Run("vectors", func(t *testing.T) {
		limitertest.RunVectors(t, func(t *testing.T, test func(*testing.T, limitertest.Store)) {
			test(t, judge(t, o))
		})
	})

	s, log := live(t, o)
	await(t, "the store is found", s.Up)
	policies := []limiter.Policy{
		hour("bucket", 5), {Name: "log", Algorithm: limiter.SlidingWindowLog, Limit: 5, Window: time.Hour},
		{Name: "fixed", Algorithm: limiter.FixedWindow, Limit: 5, Window: 24 * time.Hour},
	}
	for _, def := range []Definition{
		{CountedBy: "client-ip", Down: Closed},                // one place for each client
		{CountedBy: "client-ip", Down: Closed, Together: "g"}, // one for all
	} {
		var limits []*Limit
		for _, p := range policies {
			p.Name += def.Together
			limits = append(limits, limit(t, s, p, def))
		}
		for client := range 50 {
			passed := 0
			for range 7 {
				var charges []shaping.SharedCharge
				for _, l := range limits {
					charges = append(charges, shaping.SharedCharge{Limit: l, Key: fmt.Sprint(client), Cost: 1})
				}
				d, held := s.Take(nil, charges)
				if held {
					passed++
				}
				for _, one := range d {
					if one.Reason == limiter.ReasonStoreDown {
						t.Fatalf("%+v", one)
					}
				}
			}
			if passed != 5 {
				t.Fatalf("client %d: %d of 7 passed limits of 5", client, passed)
			}
		}
	}
	for _, n := range nodes {
		if spread := len(strings.Fields(n.Must("KEYS", "live:{*}:bucket:b"))); spread < 5 {
			t.Errorf("%d of 50 clients on %s", spread, n.Address())
		}
	}
	d, err := s.NewDepartures(hundred(10), Definition{CountedBy: "host", Down: Closed})
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.NewLeases(shaping.Policy{Name: "q", MaxInFlight: 2, Queue: 9}, Definition{CountedBy: "host", Down: Closed})
	if err != nil {
		t.Fatal(err)
	}
	for host := range 20 {
		g := d.Ask(fmt.Sprint(host), shaping.Ask{N: 2})
		if g.N != 2 || !g.Return(1) {
			t.Errorf("%+v", g)
		}
		if g := l.Ask(fmt.Sprint(host), shaping.LeaseAsk{More: 3, Every: time.Second}); g.Granted != 2 {
			t.Errorf("%+v", g)
		}
	}
	for _, n := range nodes {
		if spread := len(strings.Fields(n.Must("KEYS", "live:{*}:q:q"))); spread == 0 {
			t.Errorf("no schedule on %s", n.Address())
		}
		if spread := len(strings.Fields(n.Must("KEYS", "live:{*}:q:h"))); spread == 0 {
			t.Errorf("no places on %s", n.Address())
		}
	}
	if n := log.count("level=ERROR"); n != 0 {
		t.Errorf("%d errors", n)
	}
}

// TestSentinelFailover kills the master under load: requests are decided all the
// same, within the bound, by store_down until the replica has taken over, and
// then by it; and a queue goes on at its rate.
func TestSentinelFailover(t *testing.T) { redistest.Each(t, sentinelFailover) }

func sentinelFailover(t *testing.T, engine redistest.Engine) {
	trio := engine.StartSentinels(t)
	s, log := live(t, Options{Address: trio.Addresses(), SentinelMaster: trio.Name})
	await(t, "the store is found", s.Up)
	p := hour("l", 1)
	p.Burst = 100_000 // which does not come back while this runs
	l := limit(t, s, p, Definition{Down: Local})
	if n := l.passes("k", 100); n != 100 {
		t.Fatalf("%d of 100 passed", n)
	}
	await(t, "the replica has it", func() bool { return trio.Replica.Must("DBSIZE") == trio.Master.Must("DBSIZE") })

	queue := s.crew(t, hundred(100), Local)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var waiting sync.WaitGroup
	queue.overload(ctx, &waiting, 20)
	await(t, "many have gone", func() bool { return queue.count() > 20 })

	stop := make(chan struct{})
	var load sync.WaitGroup
	var asked, failed atomic.Int64
	for range 4 {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				began := time.Now()
				d := l.ask("k")
				asked.Add(1)
				if !d.Allowed {
					failed.Add(1)
				}
				if took := time.Since(began); took > 2*patience {
					t.Errorf("a request waited %v for the store", took)
				}
			}
		})
	}
	trio.Master.Kill()
	await(t, "it is noticed", func() bool { return !s.Up() })
	await(t, "the replica is the master", func() bool {
		role, _ := trio.Replica.Do("ROLE") // a server that changes its role ends connections
		return strings.HasPrefix(role, "master")
	})
	alone := queue.count()
	await(t, "it is found", s.Up)
	began := time.Now()
	await(t, "the queue goes on by it", func() bool {
		return queue.since(began) > 40 && strings.Contains(trio.Replica.Must("KEYS", "*:q:q"), ":q")
	})
	cancel()
	waiting.Wait()
	if alone < 40 {
		t.Errorf("%d had gone when the replica took over", alone)
	}
	// Twice what it held: when it was lost, and when it was found.
	within(t, 10*time.Millisecond, stall, 3+2*3, queue)
	close(stop)
	load.Wait()
	if failed.Load() > 0 || asked.Load() == 0 {
		t.Errorf("%d of %d were not let through", failed.Load(), asked.Load())
	}
	// What was charged before the failover is charged still.
	if d := l.ask("k"); !d.Allowed || d.Remaining > p.Burst-100 {
		t.Errorf("%+v", d)
	}
	await(t, "there is a line for each time that it was lost and found", func() bool {
		lost, found := log.count("does not answer"), log.count("answers again")
		return lost == found && lost > 0
	})
}

package redisstore

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/redistest"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// BenchmarkQueueOfTwo has two proxies with too much each share a leaky bucket with
// a queue at 100/s for 20 s: how many leave, how they are shared, and how many there
// are at most in any second. Then one is killed, and the server is restarted, each
// with the longest time until the next departure.
func BenchmarkQueueOfTwo(b *testing.B) {
	for b.Loop() {
		server := redistest.Start(b)
		alarms, err := shaping.NewAlarms()
		if err != nil {
			b.Fatal(err)
		}
		var crews []*crew
		var kills []context.CancelFunc
		var all sync.WaitGroup
		for range 2 {
			s := New(Options{Address: []string{server.Address()}, Prefix: "bench", Timeout: 50 * time.Millisecond})
			b.Cleanup(s.Close)
			d, err := s.NewDepartures(hundred(1000), Definition{CountedBy: "global", Down: Local})
			if err != nil {
				b.Fatal(err)
			}
			line, err := shaping.New(hundred(1000), shaping.WithPace(d), shaping.WithAlarms(alarms))
			if err != nil {
				b.Fatal(err)
			}
			d.Watch(line)
			ctx, kill := context.WithCancel(b.Context())
			c := &crew{Store: s, Departures: d, line: line}
			c.overload(ctx, &all, 50)
			crews, kills = append(crews, c), append(kills, kill)
		}
		for crews[0].Proxies() != 2 || crews[1].Proxies() != 2 {
			time.Sleep(10 * time.Millisecond)
		}
		measure := func(name string, during time.Duration) {
			began := time.Now()
			time.Sleep(during)
			ended := time.Now()
			total := 0
			for i, c := range crews {
				n := c.between(began, ended)
				total += n
				b.ReportMetric(float64(n), name+[]string{"-a", "-b"}[i])
			}
			b.ReportMetric(float64(total), name)
			most, gap := busiest(crews, began, ended, time.Second)
			b.ReportMetric(float64(most), name+"-most-in-1s")
			b.ReportMetric(float64(gap.Milliseconds()), name+"-gap-ms")
		}
		measure("together-20s", 20*time.Second)
		server.Kill()
		measure("without-3s", 3*time.Second)
		server.Restart()
		measure("returned-3s", 3*time.Second)
		crews[1].circuit.stop()
		kills[1]()
		measure("killed-3s", 3*time.Second)
		kills[0]()
		all.Wait()
		if err := alarms.Close(); err != nil {
			b.Fatal(err)
		}
		server.Kill()
	}
}

func (c *crew) between(from, to time.Time) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range c.left {
		if at.After(from) && !at.After(to) {
			n++
		}
	}
	return n
}

// busiest is how many left at most in any such time, and the longest in which none did.
func busiest(crews []*crew, from, to time.Time, d time.Duration) (n int, gap time.Duration) {
	all := leftOf(crews)
	last, first := from, 0
	for i, at := range all {
		if at.After(from) && !at.After(to) {
			last, gap = at, max(gap, at.Sub(last))
		}
		for at.Sub(all[first]) >= d {
			first++
		}
		if at.After(from) && !at.After(to) {
			n = max(n, i-first+1)
		}
	}
	return n, gap
}

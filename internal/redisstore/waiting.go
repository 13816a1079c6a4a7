package redisstore

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A watched is a queue that proxies share: its schedule, its places, or both.
type watched struct {
	departures *Departures // nil: none, or no more
	leases     *Leases     // nil: none
}

// about is which limit it is.
func (w *watched) about() (name string, down Down) {
	if w.departures != nil {
		return w.departures.about()
	}
	return w.leases.about()
}

// watch notes what changes of a queue.
func (s *Store) watch(q *shaping.Shaper, change func(*watched)) {
	s.sharing.Lock()
	defer s.sharing.Unlock()
	var w watched
	if was := s.queues[q]; was != nil {
		w = *was
	}
	change(&w)
	if s.queues[q] = &w; w == (watched{}) {
		delete(s.queues, q)
	}
}

// waitingHere is what the other proxies are told of who waits in this one: 'limit
// depth' for each queue that is shared and not empty.
func (s *Store) waitingHere() string {
	var b strings.Builder
	for q, w := range s.watched() {
		if n := q.Depth(); n > 0 {
			name, _ := w.about()
			fmt.Fprintf(&b, "%s %d ", name, n)
		}
	}
	return b.String()
}

func (s *Store) watched() map[*shaping.Shaper]*watched {
	s.sharing.Lock()
	defer s.sharing.Unlock()
	return maps.Clone(s.queues)
}

// on are the keys on the server of one of the queue.
func (w *watched) on(s *Store, name string) (keys []string) {
	if w.departures != nil {
		keys = append(keys, w.departures.now.Load().key(s, name))
	}
	if w.leases != nil {
		keys = append(keys, w.leases.now.Load().key(s, name))
	}
	return keys
}

// tellWaiting tells those who wait that the shard of their schedule or their places is
// lost, where nobody may leave without it.
func (s *Store) tellWaiting(sh *shard) {
	for q, w := range s.watched() {
		if _, down := w.about(); down == Closed {
			q.RefuseAll(limiter.ReasonStoreDown, func(name string) bool {
				return slices.ContainsFunc(w.on(s, name), func(key string) bool { return s.circuit.of(key) == sh })
			})
		}
	}
}

// noteWaiting takes note of what others say.
func (c *circuit) noteWaiting(list []rueidis.RedisMessage) {
	sum := map[string]int{}
	for i := range list {
		text, err := list[i].ToString()
		if err != nil {
			continue
		}
		words := strings.Fields(text)
		for j := 0; j+1 < len(words); j += 2 {
			if n, err := strconv.ParseInt(words[j+1], 10, 32); err == nil && n > 0 {
				sum[words[j]] += int(n)
			}
		}
	}
	c.waiting.Store(&sum)
}

// WaitingElsewhere is how many wait in the queues of the other proxies, over all
// keys, when each said so last, which each that lives does every second.
func (d *Departures) WaitingElsewhere() int {
	name, _ := d.about()
	return d.store.waitingElsewhere(name)
}

// WaitingElsewhere is as that of Departures.
func (l *Leases) WaitingElsewhere() int {
	name, _ := l.about()
	return l.store.waitingElsewhere(name)
}

func (s *Store) waitingElsewhere(limit string) int {
	sum := s.circuit.waiting.Load()
	if sum == nil || !s.circuit.of(s.members()).closed.Load() {
		return 0
	}
	return (*sum)[limit]
}

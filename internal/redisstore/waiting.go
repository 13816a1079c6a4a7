package redisstore

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// waitingHere is what the other proxies are told of who waits in this one: 'limit
// depth' for each queue that is shared and not empty.
func (s *Store) waitingHere() string {
	var b strings.Builder
	for _, d := range s.watched() {
		if n := d.queue.Depth(); n > 0 {
			fmt.Fprintf(&b, "%s %d ", d.now.Load().meter.Policy().Name, n)
		}
	}
	return b.String()
}

func (s *Store) watched() []*Departures {
	s.sharing.Lock()
	defer s.sharing.Unlock()
	all := make([]*Departures, 0, len(s.departures))
	for d := range s.departures {
		all = append(all, d)
	}
	return all
}

// tellWaiting tells those who wait that the server is lost, where nobody may leave
// without it.
func (s *Store) tellWaiting() {
	for _, d := range s.watched() {
		if d.now.Load().Down == Closed {
			d.queue.RefuseAll(limiter.ReasonStoreDown)
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
	sum := d.store.circuit.waiting.Load()
	if sum == nil || !d.store.Up() {
		return 0
	}
	return (*sum)[d.now.Load().meter.Policy().Name]
}

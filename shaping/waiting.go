package shaping

import (
	"time"

	"github.com/shapeproxy/shapeproxy/queue"
)

// A Waiting is one request in a queue, as somebody sees it who looks at it.
type Waiting struct {
	Key    string // whose queue it stands in
	Known  bool   // whether Key is known; only the busiest are, as names are not kept
	Class  queue.Class
	Flow   string
	Waited time.Duration
}

// Waiting is at most n of those who wait: of the busiest keys first, and of one
// key in the order in which they leave if nobody comes or gives up. Each queue
// is looked at once, under its lock, and for no longer than those take. Who
// would wait in a dry run is nobody who does.
func (s *Shaper) Waiting(n int) []Waiting {
	var all []Waiting
	seen := make(map[*bucket]bool)
	for _, busy := range s.lines.Busiest(n, s.clock.now()) {
		if busy.Clipped || len(all) >= n {
			continue
		}
		shard, h := s.lines.Shard(busy.Key)
		shard.Lock()
		if p := shard.Get(h); p != nil {
			seen[*p] = true
			all = (*p).waiting(all, n, Waiting{Key: busy.Key, Known: true})
		}
		shard.Unlock()
	}
	s.lines.Each(func(b **bucket) bool {
		if len(all) < n && !seen[*b] {
			all = (*b).waiting(all, n, Waiting{})
		}
		return true
	})
	return all
}

// waiting appends who waits to all, up to n of all together.
func (b *bucket) waiting(all []Waiting, n int, one Waiting) []Waiting {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.line.Waiting() == 0 || len(all) >= n {
		return all
	}
	now := b.now()
	for p := range b.line.queue.All(now) {
		w := p.Value
		one.Class, one.Flow, one.Waited = w.entrant.Class, w.entrant.Flow, time.Duration(now-w.Came)
		if all = append(all, one); len(all) >= n {
			break
		}
	}
	return all
}

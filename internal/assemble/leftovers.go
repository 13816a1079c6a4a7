package assemble

import (
	"slices"
	"sync"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// leftovers are queues that a reload has taken out of service while requests wait
// in them, which leave by the old rules. They count in the gauges of the limit
// that has their name now; those of a limit that was removed have none.
type leftovers struct {
	mu  sync.Mutex
	all []leftover
}

type leftover struct {
	name  string
	queue *shaping.Shaper
}

func (o *leftovers) add(name string, q *shaping.Shaper) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tidy()
	if q.Snapshot().Depth > 0 {
		o.all = append(o.all, leftover{name, q})
	}
}

// tidy forgets those in which nobody waits.
func (o *leftovers) tidy() {
	o.all = slices.DeleteFunc(o.all, func(l leftover) bool { return l.queue.Snapshot().Depth == 0 })
}

// count adds those that bear the name of st.
func (o *leftovers) count(st *limiter.Status) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tidy()
	for _, l := range o.all {
		if l.name == st.Name {
			s := l.queue.Snapshot()
			st.Depth += s.Depth
			st.OldestWait = max(st.OldestWait, s.OldestWait)
		}
	}
}

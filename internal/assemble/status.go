package assemble

import (
	"errors"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/redisstore"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// Limits is every limit as it stands now, in the file's order.
func (s *System) Limits() []limiter.Status {
	g := s.now.Load()
	all := make([]limiter.Status, len(g.limits))
	for i, l := range g.limits {
		c := &l.conf
		rate := c.Rate
		st := limiter.Status{
			Name: c.Name, Algorithm: c.Algorithm, Rate: c.Rate, Burst: c.Burst, Queue: c.Queue, MaxWait: c.MaxWait,
			Limit: c.Limit, Window: c.Window, Key: c.Key.String(), DryRun: c.DryRun, Routes: l.routes,
			FairBy: c.FairBy.String(), PromoteAfter: c.PromoteAfter, DeadlineHeader: c.DeadlineHeader, Cost: c.Cost, CostHeader: c.CostHeader,
			Store: "memory", MissingKey: c.MissingKey, Exempt: c.Exempt.String(), MaxKeys: c.MaxKeys, RefusedWith: c.Status,
		}
		if c.Calendar != "" {
			st.Window, st.Calendar, st.TimeZone = c.Calendar.About(), c.Calendar, c.Location.String()
		}
		if q := l.link.Queue; q != nil {
			now := q.Snapshot()
			st.Depth, st.OldestWait, st.Keys, st.Evicted = now.Depth, now.OldestWait, now.Keys, now.Evicted
			st.ShedAbove, st.Sheds, st.ReserveHigh = c.ShedAbove, now.Sheds, c.ReserveHigh
			st.MaxInFlight, st.InFlight = c.MaxInFlight, now.InFlight
			st.MinRate, st.MinInFlight, st.EffectiveInFlight = c.MinRate, c.MinInFlight, now.Places
			rate = now.Rate
			if l.leases != nil {
				st.Store, st.StoreDown = "redis", c.StoreDown
				st.FleetDepth = now.Depth + l.leases.WaitingElsewhere()
			}
			if now.Paused {
				st.Paused, st.Resumes = limiter.PausedByOperator, now.Resumes
			}
		} else if places := l.link.Places; places != nil {
			st.Store, st.StoreDown, st.MaxInFlight = "redis", c.StoreDown, c.MaxInFlight
			st.Keys, st.InFlight = places.(*redisstore.Places).Keys(), places.(*redisstore.Places).InFlight()
		} else if shared := l.link.Shared; shared != nil {
			st.Store, st.StoreDown = "redis", c.StoreDown
			st.Keys, st.Evicted = shared.(*redisstore.Limit).Keys(), shared.(*redisstore.Limit).Evicted()
		} else {
			st.Keys, st.Evicted = l.link.Reject.Keys(), l.link.Reject.Evicted()
		}
		l.stands(&st, rate)
		s.left.count(&st)
		all[i] = st
	}
	return all
}

// Upstreams is every upstream as it stands now, in the file's order.
func (s *System) Upstreams() []proxy.UpstreamStatus {
	g := s.now.Load()
	all := make([]proxy.UpstreamStatus, len(g.upstreams))
	for i, u := range g.upstreams {
		all[i] = u.Status()
		if e := u.ear; e != nil {
			all[i].Throttled, all[i].FieldsIgnored = e.throttled.Load(), e.ignored.Load()
		}
	}
	return all
}

// ErrNoLimit and ErrNoQueue say why a limit cannot be paused.
var (
	ErrNoLimit = errors.New("there is no limit of this name")
	ErrNoQueue = errors.New("the limit has no queue: it decides at once, so there is nothing to pause")
)

// Pause stops the departures of a limit's queues, for d or, with 0, until Resume.
// Who waits stays, and the time does not count as waiting.
func (s *System) Pause(name string, d time.Duration) error {
	q, err := s.queue(name)
	if err == nil {
		q.Pause(d)
	}
	return err
}

// Resume ends a Pause: departures go on at the pace, with no bunch.
func (s *System) Resume(name string) error {
	q, err := s.queue(name)
	if err == nil {
		q.Resume()
	}
	return err
}

func (s *System) queue(name string) (*shaping.Shaper, error) {
	switch l := s.now.Load().limit(name); {
	case l == nil:
		return nil, ErrNoLimit
	case l.link.Queue == nil || l.conf.Queue == 0:
		return nil, ErrNoQueue
	default:
		return l.link.Queue, nil
	}
}

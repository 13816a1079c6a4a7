package assemble

import (
	"fmt"

	"github.com/shapeproxy/shapeproxy/internal/redisstore"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// Busiest is at most n of the keys that a limit is asked about most, the busiest
// first. Their names are what clients sent.
func (s *System) Busiest(name string, n int) ([]limiter.Busy, error) {
	switch l := s.now.Load().limit(name); {
	case l == nil:
		return nil, unknown(name)
	case l.link.Queue != nil:
		return l.link.Queue.Busiest(n), nil
	case l.link.Reject != nil:
		return l.link.Reject.Busiest(n), nil
	case l.link.Shared != nil:
		return nil, fmt.Errorf("the limit %q is counted on Redis, which does not know its busiest keys; ask for one key by its value", name)
	default:
		return nil, elsewhere(name)
	}
}

// Key says how a limit stands for one key, as Peeked decisions do. A key that
// is not known is as good as new.
func (s *System) Key(name, key string) (limiter.Decision, error) {
	switch l := s.now.Load().limit(name); {
	case l == nil:
		return limiter.Decision{}, unknown(name)
	case l.link.Queue != nil:
		return l.link.Queue.Peek(key), nil
	case l.link.Reject != nil:
		return l.link.Reject.Peek(key, 1), nil
	case l.link.Shared != nil:
		return l.link.Shared.(*redisstore.Limit).Peek(key)
	default:
		return limiter.Decision{}, elsewhere(name)
	}
}

// Reset makes one key of a limit as good as new. Those who wait in its queue keep
// their places, and as many leave at once as the burst allows.
func (s *System) Reset(name, key string) error {
	switch l := s.now.Load().limit(name); {
	case l == nil:
		return unknown(name)
	case l.departures != nil:
		if err := l.departures.Forget(key); err != nil {
			return err
		}
		l.link.Queue.Forget(key)
	case l.link.Queue != nil:
		l.link.Queue.Forget(key)
	case l.link.Reject != nil:
		l.link.Reject.Forget(key)
	case l.link.Shared != nil:
		return l.link.Shared.(*redisstore.Limit).Forget(key)
	default:
		return elsewhere(name)
	}
	return nil
}

// Waiting is at most n of those who wait in the queue of a limit; see
// [shaping.Shaper.Waiting].
func (s *System) Waiting(name string, n int) ([]shaping.Waiting, error) {
	q, err := s.queue(name)
	if err != nil {
		return nil, err
	}
	return q.Waiting(n), nil
}

func unknown(name string) error { return fmt.Errorf("there is no limit %q", name) }

func elsewhere(name string) error {
	return fmt.Errorf("the places of the limit %q are held on Redis, by names that tell no key; each is free when its request has ended", name)
}

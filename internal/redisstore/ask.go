package redisstore

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// attempts is how often the script is asked until it decides: it does not where
// a state is under another policy, or the calendar has turned a page.
const attempts = 5

// within has f call the server about a key and those beside it, for no longer than
// the timeout. An error says that nothing was decided as far as is known, and has been
// noted.
func (s *Store) within(key string, f func(context.Context, rueidis.Client) error) error {
	shard := s.circuit.of(key)
	if !shard.closed.Load() {
		return errDown
	}
	ctx := s.deadlines.within(s.options.Timeout)
	select {
	case s.slots <- struct{}{}:
	default:
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err() // so many are under way that those before tell how it stands
		}
	}
	defer func() { <-s.slots }()

	client := s.circuit.client.Load()
	if client == nil || !shard.closed.Load() {
		return errDown
	}
	began := time.Now()
	switch err := f(ctx, *client); {
	case err == nil:
		shard.succeed()
		if s.options.Answered != nil {
			s.options.Answered(time.Since(began))
		}
		return nil
	case harmless(err):
		s.logOdd(err)
		return err
	default:
		s.circuit.fail(shard, err)
		return err
	}
}

// ask runs the script that decides.
func (s *Store) ask(mode string, at int64, charges []charge, a *answer) error {
	on := "" // they stand together
	if len(charges) > 0 {
		on = charges[0].key
	}
	return s.within(on, func(ctx context.Context, client rueidis.Client) error {
		now := s.serverTime()
		for range attempts {
			if err := s.run(ctx, client, mode, at, now, charges, a); err != nil {
				return err
			}
			switch now = a.now; a.says {
			case saysForeign:
				for i := range charges {
					charges[i].convert(a.states[i], now)
				}
			case saysNoWindow:
				s.noteTime(now)
			default:
				return nil
			}
		}
		return errAnswer
	})
}

// convert has the next call bring a state that is under another policy over.
func (c *charge) convert(state string, now int64) {
	c.old, c.moved = state, ""
	if c.old == "" || prefixed(c.old, c.set.tag+" ") {
		c.old = ""
		return
	}
	if c.moved = c.set.adopt(c.old, now); c.moved == "" {
		c.moved = c.set.fresh(now) // it says nothing
	}
}

// run is one call of the script.
func (s *Store) run(ctx context.Context, client rueidis.Client, mode string, at, now int64, charges []charge, a *answer) error {
	keys := make([]string, len(charges))
	args := make([]string, 2, 3+len(charges)*blockWidth)
	args[0], args[1] = mode, "0"
	if at != 0 {
		args[1] = strconv.FormatInt(at, 10)
	}
	for i := range charges {
		c := &charges[i]
		keys[i] = c.key
		block := c.set.one
		if c.cost != 1 || c.total != 1 {
			block = c.set.block(c.cost, c.total)
		}
		block[2], block[3] = c.old, c.moved
		c.set.window(&block, now)
		args = append(args, block[:]...)
	}
	if s.clock != nil {
		args = append(args, strconv.FormatInt(s.clock(), 10))
	}
	list, err := s.script.Exec(ctx, client, keys, args).ToArray()
	if err != nil {
		return err
	}
	*a = answer{numbers: make([]int64, 0, 3*len(charges))}
	for i := range list {
		if i >= 2 && a.says == saysForeign {
			raw, err := list[i].ToString()
			if err != nil {
				return errAnswer
			}
			a.states = append(a.states, raw)
			continue
		}
		n, err := list[i].ToInt64()
		if err != nil {
			return errAnswer
		}
		switch i {
		case 0:
			a.now = n
		case 1:
			a.says = n
		default:
			a.numbers = append(a.numbers, n)
		}
	}
	return a.valid(len(charges))
}

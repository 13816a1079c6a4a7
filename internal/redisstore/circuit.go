package redisstore

import (
	"context"
	_ "embed"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

//go:embed beat.lua
var beatText string

var beatScript = rueidis.NewLuaScript(beatText)

const (
	// opensAfter is how many calls in a row fail until no more are made.
	opensAfter = 3
	// While the server answers it is told each beatEvery that this proxy lives;
	// while it does not, it is looked for each probeEvery, with at most two calls.
	beatEvery  = time.Second
	probeEvery = 250 * time.Millisecond
	// A proxy that has been quiet for so long is taken to be dead.
	quietFor = 5 * time.Second
)

var errDown = errors.New("the store does not answer")

// A circuit knows whether the server answers, of a cluster each shard, and how many
// proxies it serves.
type circuit struct {
	store *Store

	only    shard                  // where there is no layout
	layout  atomic.Pointer[layout] // of a cluster; nil: not known yet
	client  atomic.Pointer[rueidis.Client]
	members atomic.Int32                   // proxies that lived when the server was asked last; at least 1
	fewer   time.Time                      // since when each beat has seen fewer
	waiting atomic.Pointer[map[string]int] // who wait in other proxies, by the limit, when the server was asked last

	known  chan struct{} // closed when the first beat has ended
	opened chan struct{} // woken when calls have failed
	change sync.Mutex    // held while a shard opens or closes, so that each change is logged once

	end  context.CancelFunc
	done sync.WaitGroup
}

func (c *circuit) start() {
	ctx, end := context.WithCancel(context.Background())
	c.end, c.opened, c.known = end, make(chan struct{}, 1), make(chan struct{})
	c.members.Store(1)
	c.done.Go(func() { c.run(ctx) })
}

// run beats until ctx ends.
func (c *circuit) run(ctx context.Context) {
	known := false // whether something has been said about the server
	var kept time.Time
	for {
		err := c.beat(ctx)
		if ctx.Err() != nil {
			return
		}
		c.tell(c.of(c.store.members()), err, !known)
		c.look(ctx)
		if (err == nil || c.layout.Load() != nil && c.any()) && time.Since(kept) >= beatEvery/2 {
			c.store.keep()
			c.store.keepLeases()
			kept = time.Now()
		}
		if !known {
			close(c.known)
			known = true
		}
		wait := probeEvery
		if c.all() {
			wait = beatEvery
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-c.opened:
			timer.Stop()
			// Not at once: what has just failed would fail again.
			select {
			case <-ctx.Done():
				return
			case <-time.After(probeEvery):
			}
		case <-timer.C:
		}
	}
}

// beat asks the server once for the time it takes to connect, and again for no
// longer than a request would: the first may pay for the connection.
func (c *circuit) beat(ctx context.Context) error {
	if c.client.Load() == nil {
		client, err := dial(&c.store.options)
		if err != nil {
			return err
		}
		c.client.Store(&client)
	}
	if !c.of(c.store.members()).closed.Load() {
		if err := c.call(ctx, max(c.store.options.Timeout, probeEvery)); err != nil {
			return err
		}
	}
	return c.call(ctx, c.store.options.Timeout)
}

func (c *circuit) call(ctx context.Context, atMost time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	s := c.store
	members := s.members()
	list, err := beatScript.Exec(ctx, *c.client.Load(), []string{members, members + ":waiting"}, []string{s.id, micro(quietFor), s.waitingHere()}).ToArray()
	if err != nil {
		return err
	}
	if len(list) < 2 {
		return errAnswer
	}
	now, err1 := list[0].ToInt64()
	n, err2 := list[1].ToInt64()
	if err1 != nil || err2 != nil || now < earliest || now > latest || n < 1 || n > 1e6 {
		return errAnswer
	}
	s.noteTime(now)
	c.count(int32(n))
	c.noteWaiting(list[2:])
	return nil
}

// count notes how many proxies live. Fewer are believed after quietFor only, as
// a server that was flushed has forgotten the others for a moment.
func (c *circuit) count(n int32) {
	was := c.members.Load()
	switch {
	case n >= was:
	case c.fewer.IsZero():
		c.fewer = time.Now()
		return
	case time.Since(c.fewer) < quietFor-beatEvery-beatEvery/2:
		return
	}
	c.fewer = time.Time{}
	if n != was {
		c.members.Store(n)
		c.store.share(int(n))
	}
}

// tell notes how a beat or a probe of a shard ended.
func (c *circuit) tell(sh *shard, err error, first bool) {
	c.change.Lock()
	defer c.change.Unlock()
	was := sh.closed.Load()
	if err == nil {
		sh.failed.Store(0)
		sh.closed.Store(true)
	}
	switch {
	case err == nil && first:
		c.store.options.Log.Info("the store answers", c.about(sh, "proxies", c.members.Load())...)
	case err == nil && !was:
		c.store.options.Log.Info("the store answers again", c.about(sh, "proxies", c.members.Load())...)
	case err != nil && first:
		c.store.options.Log.Error(lost, c.about(sh, "error", err)...)
	case err != nil && was && sh.failed.Add(1) >= opensAfter:
		c.openLocked(sh, err)
	}
}

const lost = "the store does not answer; limits do what their store_down says until it does"

func (c *circuit) about(sh *shard, more ...any) []any {
	list := []any{"address", c.store.options.Address}
	if sh.name != "" {
		list = append(list, "shard", sh.name)
	}
	return append(list, more...)
}

// succeed and fail note how a call ended.
func (sh *shard) succeed() {
	if sh.failed.Load() != 0 {
		sh.failed.Store(0)
	}
}

func (c *circuit) fail(sh *shard, err error) {
	if sh.failed.Add(1) < opensAfter || !sh.closed.Load() {
		return
	}
	c.change.Lock()
	defer c.change.Unlock()
	if sh.closed.Load() {
		c.openLocked(sh, err)
		select {
		case c.opened <- struct{}{}:
		default:
		}
	}
}

func (c *circuit) openLocked(sh *shard, err error) {
	sh.closed.Store(false)
	go c.store.tellWaiting(sh)
	c.store.options.Log.Error(lost, c.about(sh, "error", err)...)
}

// all reports whether every shard answers, and any whether one does.
func (c *circuit) all() bool {
	return !slices.ContainsFunc(c.each(), func(sh *shard) bool { return !sh.closed.Load() })
}

func (c *circuit) any() bool {
	return slices.ContainsFunc(c.each(), func(sh *shard) bool { return sh.closed.Load() })
}

// stop ends the goroutine, lets no call through any more, and reports whether
// the server answered until now.
func (c *circuit) stop() (up bool) {
	c.end()
	c.done.Wait()
	up = c.of(c.store.members()).closed.Load()
	for _, sh := range append(c.each(), &c.only) {
		sh.closed.Store(false)
	}
	return up
}

// leave takes leave of a server that is up, so that the others know at once,
// and closes the client. No call may be under way.
func (c *circuit) leave(up bool) {
	client := c.client.Load()
	if client == nil {
		return
	}
	if up {
		ctx, cancel := context.WithTimeout(context.Background(), c.store.options.Timeout)
		defer cancel()
		cl := *client
		cl.Do(ctx, cl.B().Zrem().Key(c.store.members()).Member(c.store.id).Build())
	}
	(*client).Close()
}

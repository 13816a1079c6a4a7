package redisstore

import (
	"context"
	_ "embed"
	"errors"
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

// A circuit knows whether the server answers, and how many proxies it serves.
// While it is closed calls go through; when opensAfter of them in a row have
// failed it is open, and only its own goroutine calls.
type circuit struct {
	store *Store

	closed  atomic.Bool
	failed  atomic.Int32 // calls in a row
	client  atomic.Pointer[rueidis.Client]
	members atomic.Int32                   // proxies that lived when the server was asked last; at least 1
	fewer   int                            // beats in a row that saw fewer
	waiting atomic.Pointer[map[string]int] // who wait in other proxies, by the limit, when the server was asked last

	known  chan struct{} // closed when the first beat has ended
	opened chan struct{} // woken when calls have failed
	change sync.Mutex    // held while closed changes, so that each change is logged once

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
	for {
		err := c.beat(ctx)
		if ctx.Err() != nil {
			return
		}
		c.tell(err, !known)
		if err == nil {
			c.store.keep()
			c.store.keepLeases()
		}
		if !known {
			close(c.known)
			known = true
		}
		wait := probeEvery
		if err == nil {
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
	if !c.closed.Load() {
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
	members := s.options.Prefix + ":{members}"
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
	if n < was {
		if c.fewer++; c.fewer < int(quietFor/beatEvery) {
			return
		}
	}
	c.fewer = 0
	if n != was {
		c.members.Store(n)
		c.store.share(int(n))
	}
}

// tell notes how a beat ended.
func (c *circuit) tell(err error, first bool) {
	c.change.Lock()
	defer c.change.Unlock()
	was := c.closed.Load()
	if err == nil {
		c.failed.Store(0)
		c.closed.Store(true)
	}
	log := c.store.options.Log
	switch {
	case err == nil && first:
		log.Info("the store answers", "address", c.store.options.Address, "proxies", c.members.Load())
	case err == nil && !was:
		log.Info("the store answers again", "address", c.store.options.Address, "proxies", c.members.Load())
	case err != nil && first:
		log.Error("the store does not answer; limits do what their store_down says until it does", "address", c.store.options.Address, "error", err)
	case err != nil && was && c.failed.Add(1) >= opensAfter:
		c.openLocked(err)
	}
}

// succeed and fail note how a call ended.
func (c *circuit) succeed() {
	if c.failed.Load() != 0 {
		c.failed.Store(0)
	}
}

func (c *circuit) fail(err error) {
	if c.failed.Add(1) < opensAfter || !c.closed.Load() {
		return
	}
	c.change.Lock()
	defer c.change.Unlock()
	if c.closed.Load() {
		c.openLocked(err)
		select {
		case c.opened <- struct{}{}:
		default:
		}
	}
}

func (c *circuit) openLocked(err error) {
	c.closed.Store(false)
	go c.store.tellWaiting()
	c.store.options.Log.Error("the store does not answer; limits do what their store_down says until it does", "address", c.store.options.Address, "error", err)
}

// stop ends the goroutine, lets no call through any more, and reports whether
// the server answered until now.
func (c *circuit) stop() (up bool) {
	c.end()
	c.done.Wait()
	return c.closed.Swap(false)
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
		cl.Do(ctx, cl.B().Zrem().Key(c.store.options.Prefix+":{members}").Member(c.store.id).Build())
	}
	(*client).Close()
}

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// A shard is a server that keys stand on: the only one, or the master of some of a
// cluster's slots. While it is closed calls go through; when opensAfter of them in a
// row have failed it is open, and only the circuit's own goroutine calls.
type shard struct {
	name   string // where it is, of a cluster
	closed atomic.Bool
	failed atomic.Int32 // calls in a row
}

// slotCount is how many slots a cluster has.
const slotCount = 16384

// A layout says which shard each slot of a cluster stands on.
type layout struct {
	of  [slotCount]*shard
	all map[string]*shard // by the node's id
}

// of is the shard that a key stands on; before a cluster's layout is known, one for
// all.
func (c *circuit) of(key string) *shard {
	if l := c.layout.Load(); l != nil {
		if sh := l.of[slotOf(*c.client.Load(), key)]; sh != nil {
			return sh
		}
	}
	return &c.only
}

func slotOf(client rueidis.Client, key string) uint16 {
	cmd := client.B().Get().Key(key).Build()
	return cmd.Slot()
}

// each are the shards that there are now.
func (c *circuit) each() []*shard {
	if l := c.layout.Load(); l != nil {
		return slices.Collect(maps.Values(l.all))
	}
	return []*shard{&c.only}
}

// look asks a cluster who has which slots, and those shards that do not answer
// whether they do again. What the members stand on has been asked by the beat.
func (c *circuit) look(ctx context.Context) {
	client := c.client.Load()
	if !c.store.options.Cluster || client == nil {
		return
	}
	// One that cannot be asked, as it may be the one that is lost, leaves the layout
	// as it was.
	if l, err := c.layoutOf(ctx, *client); err == nil {
		c.layout.Store(l)
	}
	home := c.of(c.store.members())
	var probes sync.WaitGroup
	defer probes.Wait()
	for _, sh := range c.each() {
		if sh != home && !sh.closed.Load() {
			probes.Go(func() {
				err := c.probe(ctx, *client, sh)
				if ctx.Err() == nil {
					c.tell(sh, err, false)
				}
			})
		}
	}
}

// layoutOf asks for the layout. A shard that is known keeps its state; one that has
// taken slots over is as the one that had them, until it has been asked.
func (c *circuit) layoutOf(ctx context.Context, client rueidis.Client) (*layout, error) {
	ctx, cancel := context.WithTimeout(ctx, max(c.store.options.Timeout, probeEvery))
	defer cancel()
	ranges, err := client.Do(ctx, client.B().ClusterSlots().Build()).ToArray()
	if err != nil {
		return nil, err
	}
	was, is := c.layout.Load(), &layout{all: map[string]*shard{}}
	for i := range ranges {
		first, last, id, at, err := slotRange(&ranges[i])
		if err != nil {
			return nil, err
		}
		sh := is.all[id]
		if sh == nil && was != nil {
			sh = was.all[id]
		}
		if sh == nil {
			sh = &shard{name: at}
			before := &c.only
			if was != nil && was.of[first] != nil {
				before = was.of[first]
			}
			sh.closed.Store(before.closed.Load())
		}
		is.all[id] = sh
		for n := first; n <= last; n++ {
			is.of[n] = sh
		}
	}
	if len(is.all) == 0 {
		return nil, errAnswer
	}
	return is, nil
}

// slotRange reads one item of CLUSTER SLOTS: first and last slot, and the master's
// address, port and id.
func slotRange(m *rueidis.RedisMessage) (first, last int64, id, at string, err error) {
	item, err := m.ToArray()
	if err != nil || len(item) < 3 {
		return 0, 0, "", "", errAnswer
	}
	master, err := item[2].ToArray()
	if err != nil || len(master) < 3 {
		return 0, 0, "", "", errAnswer
	}
	first, err1 := item[0].ToInt64()
	last, err2 := item[1].ToInt64()
	port, err3 := master[1].ToInt64()
	id, err4 := master[2].ToString()
	if errors.Join(err1, err2, err3, err4) != nil || first < 0 || last >= slotCount || id == "" {
		return 0, 0, "", "", errAnswer
	}
	host, _ := master[0].ToString()
	return first, last, id, net.JoinHostPort(host, strconv.FormatInt(port, 10)), nil
}

// probe writes a key on the shard, once for the time it takes to connect, and again
// for no longer than a request would. It writes, as a server that is full answers
// what only reads.
func (c *circuit) probe(ctx context.Context, client rueidis.Client, sh *shard) error {
	key := ""
	for n := 0; n < slotCount && key == ""; n++ {
		if try := fmt.Sprintf("%s:{%d}:probe", c.store.options.Prefix, n); c.of(try) == sh {
			key = try
		}
	}
	for _, atMost := range []time.Duration{max(c.store.options.Timeout, probeEvery), c.store.options.Timeout} {
		ctx, cancel := context.WithTimeout(ctx, atMost)
		err := client.Do(ctx, client.B().Set().Key(key).Value("1").PxMilliseconds(quietFor.Milliseconds()).Build()).Error()
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

package keyed

import (
	"fmt"
	"testing"
)

// What a new key costs at a full table is bounded, and the same for a thousand
// keys and a hundred thousand: it looks at two states that may have faded and at
// one sample, and moves no more than a run of neighbours. That no decision waits
// for longer follows from this, and is no matter of the machine's speed.
func TestWorkOfANewKeyAtAFullTable(t *testing.T) {
	for _, bound := range []int{1000, 100_000} {
		looks := 0
		m := New(bound, func(v *until, now int64) int64 { looks++; return rank(v, now) })
		for i := range bound {
			put(m, fmt.Sprint("old", i), 0, until(1_000_000+i))
		}
		for i := range 2 * bound {
			looks = 0
			if !put(m, fmt.Sprint("new", i), int64(i), until(2_000_000+i)) || m.Len() != bound {
				t.Fatalf("%d keys, %d held", i, m.Len())
			}
			// A shard may be empty by chance, and then others are looked at.
			if most := 2 + sample; looks > most {
				t.Fatalf("%d keys: key %d looked at %d states, at most %d", bound, i, looks, most)
			}
		}
		longest, slots := 0, 0
		for i := range m.shards {
			s := &m.shards[i]
			slots = len(s.slots)
			run := 0
			for j := range 2 * slots {
				if s.slots[j%slots].hash == 0 {
					run = 0
					continue
				}
				run++
				longest = max(longest, run)
			}
			if slots > 8*perShard {
				t.Errorf("%d keys: a shard of %d slots, which takes long to grow", bound, slots)
			}
		}
		if longest > perShard {
			t.Errorf("%d keys: a run of %d neighbours", bound, longest)
		}
	}
}

// A small map has several shards too, or all its decisions would wait for one
// lock; its bound is exact all the same.
func TestSmallMapHasShards(t *testing.T) {
	for most, want := range map[int]int{1: 1, 128: 1, 129: 2, 1000: 8, 100_000: 1024, 10_000_000: maxShards} {
		if n := len(New(most, rank).shards); n != want {
			t.Errorf("%d keys: %d shards, want %d", most, n, want)
		}
	}
}

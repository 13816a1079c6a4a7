package keyed

import (
	"fmt"
	"testing"
)

// TestSipHash: the vector of the paper's appendix A, and the first and the last
// of the reference implementation's.
func TestSipHash(t *testing.T) {
	var seed Seed
	var text []byte
	for i := range seed {
		seed[i] = byte(i)
	}
	for i := range 63 {
		text = append(text, byte(i))
	}
	for n, want := range map[int]uint64{0: 0x726fdb47dd0e0e31, 15: 0xa129ca6149be45e5, 63: 0x958a324ceb064572} {
		if got := seed.hash(string(text[:n])); got != want {
			t.Errorf("%d bytes: %#x, want %#x", n, got, want)
		}
	}
}

// TestReseed: two maps of one seed know a key by one hash, and what one holds
// can be put into the other.
func TestReseed(t *testing.T) {
	keep := func(*int, int64) int64 { return 1 }
	a, b, other := New(10_000, keep), New(10_000, keep), New(10_000, keep)
	a.Reseed(Seed{1})
	b.Reseed(Seed{1})
	other.Reseed(Seed{2})
	for i := range 5000 {
		shard, h := a.Shard(fmt.Sprint("key", i))
		shard.Lock()
		v, _ := shard.Put(h, 0)
		*v = i + 1
		shard.Unlock()
		if _, same := b.Shard(fmt.Sprint("key", i)); same != h {
			t.Fatalf("hashes %#x and %#x", h, same)
		}
		if _, same := other.Shard(fmt.Sprint("key", i)); same == h {
			t.Fatalf("another seed, the same hash %#x", h)
		}
	}
	n := 0
	for shard := range a.Shards() {
		shard.EachHash(func(h uint64, v *int) {
			p, _ := b.At(h).Put(h, 0)
			*p = *v
			n++
		})
	}
	if n != 5000 || b.Len() != 5000 {
		t.Fatalf("%d met, %d held", n, b.Len())
	}
	for i := range 5000 {
		shard, h := b.Shard(fmt.Sprint("key", i))
		shard.Lock()
		if v := shard.Get(h); v == nil || *v != i+1 {
			t.Errorf("key %d: %v", i, v)
		}
		shard.Unlock()
	}
}

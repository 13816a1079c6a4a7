package keyed

import (
	"encoding/binary"
	"iter"
	"math/bits"
)

// A Seed is what a Map hashes its keys with, where hashes must mean the same in
// another process. It is a secret: who knows it can choose keys to collide.
type Seed [16]byte

// Reseed has the map hash its keys by SipHash-2-4 under the seed from now on,
// some nanoseconds slower than by the hash of the process. It must be called
// before the first key.
func (m *Map[V]) Reseed(seed Seed) { m.portable = &seed }

// Shards are the parts of the map, for whoever goes through all states and does
// more than copy them under a lock.
func (m *Map[V]) Shards() iter.Seq[*Shard[V]] {
	return func(yield func(*Shard[V]) bool) {
		for i := range m.shards {
			if !yield(&m.shards[i]) {
				return
			}
		}
	}
}

// hash is SipHash-2-4 (Aumasson and Bernstein, "SipHash: a fast short-input
// PRF", 2012).
func (k *Seed) hash(s string) uint64 {
	k0, k1 := binary.LittleEndian.Uint64(k[:8]), binary.LittleEndian.Uint64(k[8:])
	v0, v1, v2, v3 := k0^0x736f6d6570736575, k1^0x646f72616e646f6d, k0^0x6c7967656e657261, k1^0x7465646279746573
	round := func() {
		v0 += v1
		v1 = bits.RotateLeft64(v1, 13) ^ v0
		v0 = bits.RotateLeft64(v0, 32)
		v2 += v3
		v3 = bits.RotateLeft64(v3, 16) ^ v2
		v0 += v3
		v3 = bits.RotateLeft64(v3, 21) ^ v0
		v2 += v1
		v1 = bits.RotateLeft64(v1, 17) ^ v2
		v2 = bits.RotateLeft64(v2, 32)
	}
	last := uint64(len(s)) << 56
	for len(s) >= 8 {
		m := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
		v3 ^= m
		round()
		round()
		v0 ^= m
		s = s[8:]
	}
	for i := range len(s) {
		last |= uint64(s[i]) << (8 * i)
	}
	v3 ^= last
	round()
	round()
	v0 ^= last
	v2 ^= 0xff
	for range 4 {
		round()
	}
	return v0 ^ v1 ^ v2 ^ v3
}

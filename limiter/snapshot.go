package limiter

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/keyed"
)

// Portable has the limits that are made from now on hash their keys under seed,
// a secret, so that what Save writes means the same in another process. It must
// be called before the first NewLimit.
func (m *Memory) Portable(seed [16]byte) {
	s := keyed.Seed(seed)
	m.seed = &s
}

// Seed is what Portable was given; zero if it was not.
func (m *Memory) Seed() (seed [16]byte) {
	if m.seed != nil {
		seed = *m.seed
	}
	return seed
}

// Save writes what the keys of the limit have used, as hashes and never as text,
// with the policy by which it is counted. It holds up decisions for no longer
// than a shard of some thousand keys takes to be copied, so keys are of slightly
// different instants. The limit's Memory must be Portable.
func (l *Limit) Save(w *bufio.Writer) error {
	s := &stateWriter{w: w, now: l.memory.now()}
	s.policy(l.Policy())
	l.budgets.save(s)
	s.uvarint(0)
	return s.err
}

// Load puts what Save wrote into a limit of the same algorithm, whose Memory has
// the same seed. Where the policies differ, keys go on with as much as they have
// used, as Adopt does; time has gone on meanwhile, by the wall clock. Keys that
// are as good as new by now are left out. It is meant for a limit that nobody
// has asked yet. What is wrong with the data is the error, and the keys before
// that have been loaded.
func (l *Limit) Load(r *bufio.Reader) error {
	s := &stateReader{r: r}
	was := s.policy()
	if s.err == nil && was.Algorithm != l.Policy().Algorithm {
		s.err = fmt.Errorf("holds a %s", was.Algorithm)
	}
	if s.err == nil {
		s.err = was.Validate()
	}
	if s.err != nil {
		return s.err
	}
	l.budgets.load(s, was, l.memory.now())
	return s.err
}

// SkipSaved reads what Save wrote past.
func SkipSaved(r *bufio.Reader) error {
	s := &stateReader{r: r}
	for s.policy(); s.next(); {
	}
	return s.err
}

// A stateWriter writes numbers until the first error.
type stateWriter struct {
	w   *bufio.Writer
	now int64
	err error
	buf []byte
}

func (s *stateWriter) flush() {
	if s.err == nil {
		_, s.err = s.w.Write(s.buf)
	}
	s.buf = s.buf[:0]
}

func (s *stateWriter) uvarint(n uint64) {
	s.buf = binary.AppendUvarint(s.buf, n)
	s.flush()
}

func (s *stateWriter) text(t string) {
	s.uvarint(uint64(len(t)))
	s.buf = append(s.buf, t...)
	s.flush()
}

func (s *stateWriter) policy(p Policy) {
	s.text(string(p.Algorithm))
	zone := ""
	if p.Location != nil {
		zone = p.Location.String()
	}
	s.text(string(p.Calendar))
	s.text(zone)
	for _, n := range []int64{p.Rate.Count, int64(p.Rate.Per), p.Burst, p.Limit, int64(p.Window)} {
		s.uvarint(uint64(n))
	}
}

// A stateReader reads numbers until the first error.
type stateReader struct {
	r     *bufio.Reader
	err   error
	hash  uint64
	words []int64
}

var errState = errors.New("holds what was never saved")

func (s *stateReader) uvarint() uint64 {
	if s.err != nil {
		return 0
	}
	n, err := binary.ReadUvarint(s.r)
	s.err = err
	return n
}

// length is a uvarint that is no more than most.
func (s *stateReader) length(most uint64) int {
	n := s.uvarint()
	if n > most && s.err == nil {
		s.err = errState
	}
	if s.err != nil {
		return 0
	}
	return int(n)
}

func (s *stateReader) text() string {
	b := make([]byte, s.length(256))
	if s.err == nil {
		_, s.err = io.ReadFull(s.r, b)
	}
	return string(b)
}

func (s *stateReader) policy() (p Policy) {
	p.Algorithm, p.Calendar = Algorithm(s.text()), Calendar(s.text())
	zone := s.text()
	var err error
	if p.Location, err = time.LoadLocation(zone); err != nil && s.err == nil {
		s.err = err
	}
	p.Rate.Count, p.Rate.Per = int64(s.uvarint()), time.Duration(s.uvarint())
	p.Burst, p.Limit, p.Window = int64(s.uvarint()), int64(s.uvarint()), time.Duration(s.uvarint())
	return p
}

// Each key is its number of words and one, its hash, and the words; a zero ends
// them.

func (s *stateWriter) key(h uint64, words []int64) {
	s.buf = binary.AppendUvarint(s.buf, uint64(len(words))+1)
	s.buf = binary.LittleEndian.AppendUint64(s.buf, h)
	for _, w := range words {
		s.buf = binary.AppendVarint(s.buf, w)
	}
}

// next reads a key, and reports whether there was one.
func (s *stateReader) next() bool {
	n := s.length(math.MaxInt32)
	if s.err != nil || n == 0 {
		return false
	}
	var b [8]byte
	if _, s.err = io.ReadFull(s.r, b[:]); s.err != nil {
		return false
	}
	s.hash, s.words = binary.LittleEndian.Uint64(b[:]), s.words[:0]
	for range n - 1 {
		w, err := binary.ReadVarint(s.r)
		if err != nil {
			s.err = err
			return false
		}
		s.words = append(s.words, w)
	}
	return true
}

// flushAt is how much is gathered under a shard's lock before it is written, as
// a slow disk must not hold up decisions.
const flushAt = 64 << 10

func (k *keys[S, M]) save(w *stateWriter) {
	var words []int64
	for shard := range k.Shards() {
		shard.Lock()
		shard.EachHash(func(h uint64, s *S) {
			if k.meter.rank(*s, w.now) > 0 {
				words = stateWords(words[:0], any(s))
				w.key(h, words)
			}
		})
		shard.Unlock()
		if len(w.buf) >= flushAt {
			w.flush()
		}
	}
	w.flush()
}

func (k *keys[S, M]) load(r *stateReader, was Policy, now int64) {
	old := k.make(was)
	for r.next() {
		var s S
		if r.hash == 0 || !setState(any(&s), r.words, was) {
			r.err = errState
			return
		}
		shard := k.At(r.hash)
		shard.Lock()
		old.settle(&s, now)
		k.meter.adopt(old, &s, now)
		if k.meter.rank(s, now) > 0 {
			if p, ok := shard.Put(r.hash, now); ok {
				*p = s
			}
		}
		shard.Unlock()
	}
}

// stateWords appends what s holds.
func stateWords(words []int64, s any) []int64 {
	switch s := s.(type) {
	case *tokenState:
		return append(words, s.tat, s.frac)
	case *leakyState:
		return append(words, s.level, s.part, s.at)
	case *fixedState:
		return append(words, s.start, s.count)
	case *counterState:
		return append(words, s.start, s.current, s.previous)
	case *logState:
		l := s.read()
		for i := range l.n {
			words = append(words, l.nth(i).at, l.nth(i).n)
		}
		return words
	}
	panic("limiter: a state that cannot be saved")
}

// setState is stateWords the other way. It reports whether the words are such
// that decisions by p can have left them.
func setState(s any, words []int64, p Policy) bool {
	within := func(n, least, most int64) bool { return least <= n && n <= most }
	const latest = 1 << 62
	switch s := s.(type) {
	case *tokenState:
		if len(words) != 2 || !within(words[0], 0, latest) || !within(words[1], 0, p.Rate.Count-1) {
			return false
		}
		*s = tokenState{words[0], words[1]}
	case *leakyState:
		if len(words) != 3 || !within(words[0], 0, p.Burst) || !within(words[1], 0, int64(p.Rate.Per)-1) || !within(words[2], 0, latest) {
			return false
		}
		*s = leakyState{words[0], words[1], words[2]}
	case *fixedState:
		if len(words) != 2 || !within(words[0], -latest, latest) || !within(words[1], 0, p.Limit) {
			return false
		}
		*s = fixedState{words[0], words[1]}
	case *counterState:
		if len(words) != 3 || !within(words[0], -latest, latest) || !within(words[1], 0, p.Limit) || !within(words[2], 0, p.Limit) {
			return false
		}
		*s = counterState{words[0], words[1], words[2]}
	case *logState:
		if len(words) == 0 || len(words)%2 != 0 {
			return false
		}
		l := new(log)
		for i, last := 0, int64(-1); i < len(words); i += 2 {
			if !within(words[i], last+1, latest) || !within(words[i+1], 1, p.Limit-l.used) {
				return false
			}
			last = words[i]
			l.push(words[i], words[i+1], p.Limit)
		}
		s.log = l
	}
	return true
}

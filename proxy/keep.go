package proxy

import (
	"bytes"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

const (
	// keptAnswer is the most of an answer that is kept while its request waits
	// for another turn, which it may not get.
	keptAnswer = 16 << 10
	// keptInAll bounds what is kept of all requests, to be sent again, and of
	// answers.
	keptInAll = 64 << 20
)

// A share is what one request has of keptInAll. It is safe for concurrent use, as
// a body may be read on after its answer has ended.
type share struct {
	all *atomic.Int64

	mu   sync.Mutex
	n    int64
	over bool
}

// take takes n bytes more, if they are left.
func (s *share) take(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	if s.all.Add(n) > keptInAll {
		s.all.Add(-n)
		return false
	}
	s.n += n
	return true
}

func (s *share) giveBack(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.all.Add(-n)
		s.n -= n
	}
}

// end gives back what is left, for good.
func (s *share) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all.Add(-s.n)
	s.n, s.over = 0, true
}

// mayKeep reports whether the first n bytes may be kept, and makes room for them.
// What is more than every body may keep is taken as it comes: who only says that
// much will come takes nothing from others.
func (b *clientBody) mayKeep(n int) bool {
	switch {
	case n <= keptBytes || n <= b.shared:
		return true
	case n > b.keep:
		return false
	}
	room := min(max(2*b.shared, 2*keptBytes, n), b.keep)
	if !b.share.take(int64(room - b.shared)) {
		return false
	}
	kept := make([]byte, len(b.kept), room)
	copy(kept, b.kept)
	b.kept, b.shared = kept, room
	return true
}

// letGo keeps nothing any more.
func (b *clientBody) letGo() {
	b.kept, b.lost = nil, true
	if b.shared > 0 {
		b.share.giveBack(int64(b.shared))
		b.shared = 0
	}
}

// keepAnswer reads an answer to its end, so that its connection is free and it can
// be given after all; unless it is long, or broken.
func (x *exchange) keepAnswer(res *http.Response) bool {
	if !x.kept.take(keptAnswer) {
		return false
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, keptAnswer+1))
	whole := err == nil && len(b) <= keptAnswer
	var rest io.Reader = bytes.NewReader(b)
	if whole {
		_ = res.Body.Close() // it has been read
	} else {
		rest = io.MultiReader(rest, res.Body)
	}
	res.Body = &readAhead{rest, res.Body}
	return whole
}

// A readAhead is a body of which some has been read already.
type readAhead struct {
	io.Reader
	io.Closer
}

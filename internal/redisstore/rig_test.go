package redisstore

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/redistest"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A lines is a log that can be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

func live(t *testing.T, o Options) (*Store, *lines) {
	t.Helper()
	log := &lines{}
	if o.Timeout == 0 {
		o.Timeout = patience
	}
	o.Prefix, o.Log = "live", slog.New(slog.NewTextHandler(log, nil))
	s := New(o)
	t.Cleanup(s.Close)
	return s, log
}

func at(server *redistest.Server) Options { return Options{Address: []string{server.Address()}} }

func limit(t *testing.T, s *Store, p limiter.Policy, def Definition) *Limit {
	t.Helper()
	l, err := s.NewLimit(p, def)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Drop)
	return l
}

// hour is n in an hour, all at once.
func hour(name string, n int64) limiter.Policy {
	return limiter.Policy{Name: name, Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: n, Per: time.Hour}, Burst: n}
}

func (l *Limit) ask(key string) limiter.Decision {
	d, _ := l.store.Take(nil, []shaping.SharedCharge{{Limit: l, Key: key, Cost: 1}})
	return d[0]
}

func (l *Limit) passes(key string, n int) (passed int) {
	for range n {
		if l.ask(key).Allowed {
			passed++
		}
	}
	return passed
}

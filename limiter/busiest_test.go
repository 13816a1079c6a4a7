package limiter_test

import (
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// The busiest are named whether a limit is asked alone or with others, refused or
// not; looks do not count.
func TestBusiest(t *testing.T) {
	m := limiter.NewMemory()
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: 1, Per: time.Hour}, Burst: 5}
	a, err := m.NewLimit(p)
	if err != nil {
		t.Fatal(err)
	}
	b, err := m.NewLimit(p)
	if err != nil {
		t.Fatal(err)
	}
	for range 4000 {
		a.Take("alone", 1)
		a.Peek("looked at", 1)
		m.Take(nil, []limiter.Charge{{Limit: a, Key: "both", Cost: 1}, {Limit: b, Key: "both", Cost: 1}})
		m.Take(nil, []limiter.Charge{{Limit: a, Key: "both", Cost: 1}, {Limit: b, Key: "both", Cost: 1}})
	}
	top := a.Busiest(10)
	if len(top) != 2 || top[0].Key != "both" || top[1].Key != "alone" || top[0].Count < 5000 || top[0].Count > 11_000 {
		t.Errorf("%+v", top)
	}
	if top := b.Busiest(1); len(top) != 1 || top[0].Key != "both" {
		t.Errorf("%+v", top)
	}
	if top := b.Busiest(0); len(top) != 0 {
		t.Errorf("%+v", top)
	}
}

package limiter_test

import (
	"fmt"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// One limit: each client may send five at once, and then one an hour.
func Example() {
	rate, err := limiter.ParseRate("1/h")
	if err != nil {
		panic(err)
	}
	perClient, err := limiter.New(limiter.Policy{
		Name:      "per-client",
		Algorithm: limiter.TokenBucket,
		Rate:      rate,
		Burst:     5,
	})
	if err != nil {
		panic(err)
	}
	for range 6 {
		d := perClient.Take("192.0.2.1", 1)
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter.Round(time.Hour))
	}
	fmt.Println(perClient.Take("192.0.2.2", 1).Allowed)
	// Output:
	// true 4 0s
	// true 3 0s
	// true 2 0s
	// true 1 0s
	// true 0 0s
	// false 0 1h0m0s
	// true
}

// Two limits that decide together: what one refuses is charged to none.
func ExampleMemory_Take() {
	m := limiter.NewMemory()
	burst, err := m.NewLimit(limiter.Policy{Name: "burst", Algorithm: limiter.SlidingWindowLog, Limit: 3, Window: time.Hour})
	if err != nil {
		panic(err)
	}
	daily, err := m.NewLimit(limiter.Policy{Name: "daily", Algorithm: limiter.FixedWindow, Limit: 1000, Window: 24 * time.Hour})
	if err != nil {
		panic(err)
	}
	charges := []limiter.Charge{{Limit: burst, Key: "alice", Cost: 2}, {Limit: daily, Key: "alice", Cost: 2}}
	var decisions []limiter.Decision
	for range 2 {
		decisions = m.Take(decisions[:0], charges)
		for _, d := range decisions {
			fmt.Println(d.Policy, d.Allowed, d.Remaining, "of", d.Limit)
		}
	}
	// Output:
	// burst true 1 of 3
	// daily true 998 of 1000
	// burst false 1 of 3
	// daily true 998 of 1000
}

// A change of the limit keeps what its keys have used.
func ExampleLimit_Adopt() {
	p := limiter.Policy{Name: "uploads", Algorithm: limiter.SlidingWindowLog, Limit: 10, Window: time.Hour}
	uploads, err := limiter.New(p)
	if err != nil {
		panic(err)
	}
	uploads.Take("alice", 8)
	p.Limit = 20
	if err := uploads.Adopt(p); err != nil {
		panic(err)
	}
	fmt.Println(uploads.Peek("alice", 1).Remaining)
	// Output: 12
}

func ExampleParseRate() {
	for _, s := range []string{"7/m", "0.5/s", "100/10s"} {
		r, err := limiter.ParseRate(s)
		fmt.Println(r, r.Count, r.Per, err)
	}
	_, err := limiter.ParseRate("10")
	fmt.Println(err)
	// Output:
	// 7/m 7 1m0s <nil>
	// 30/m 1 2s <nil>
	// 10/s 1 100ms <nil>
	// a rate needs a unit; write "10/s" for 10 requests a second
}

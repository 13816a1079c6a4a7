package shaping_test

import (
	"context"
	"fmt"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

func ExampleShaper() {
	rate, _ := limiter.ParseRate("100/s")
	shaper, err := shaping.New(shaping.Policy{
		Name: "fragile", Rate: rate, Burst: 1, Queue: 50, MaxWait: 10 * time.Second,
	})
	if err != nil {
		panic(err)
	}
	for range 3 {
		// The second and third wait for some 10 ms each.
		d, err := shaper.Acquire(context.Background(), shaping.Request{Key: "client"})
		switch {
		case err != nil:
			fmt.Println("the client left:", err)
		case !d.Allowed:
			fmt.Println("refused:", d.Reason, "try again in", d.RetryAfter)
		default:
			fmt.Println("go, waited:", d.Queued)
		}
	}
	// Output:
	// go, waited: false
	// go, waited: true
	// go, waited: true
}

// A line is driven by whoever knows the time; here, a list of arrivals.
func ExampleLine() {
	rate, _ := limiter.ParseRate("6/m")
	line := shaping.NewLine[string](shaping.Terms{Rate: rate, Burst: 1, Queue: 2, MaxWait: time.Minute})

	const second = int64(time.Second)
	for _, name := range []string{"first", "second", "third", "fourth"} {
		verdict, waiter := line.Arrive(5*second, name)
		switch {
		case waiter != nil:
			fmt.Println(name, "waits", verdict.Wait)
		case verdict.Reason != limiter.ReasonNone:
			fmt.Println(name, "refused:", verdict.Reason, "for", verdict.RetryAfter)
		default:
			fmt.Println(name, "goes at once")
		}
	}
	for now := 5 * second; line.Head(now) != nil; {
		now = line.Due(now)
		fmt.Println(line.Leave(now).Value, "leaves at", time.Duration(now))
	}
	// Output:
	// first goes at once
	// second waits 10s
	// third waits 20s
	// fourth refused: queue_full for 10s
	// second leaves at 15s
	// third leaves at 25s
}

package shaping_test

import (
	"context"
	"fmt"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// drain lets everybody out, one after the other at the pace.
func drain(line *shaping.Line[string], now int64) {
	for line.Head(now) != nil {
		now = line.Due(now)
		fmt.Println(time.Duration(now), line.Leave(now).Value)
	}
}

// An upstream that can do one thing at a time: who finds no place waits for one.
func ExampleShaper_places() {
	shaper, err := shaping.New(shaping.Policy{Name: "fragile", MaxInFlight: 1, Queue: 10, MaxWait: 10 * time.Second})
	if err != nil {
		panic(err)
	}
	first, _ := shaper.Acquire(context.Background(), shaping.Request{})
	go func() {
		time.Sleep(time.Millisecond) // the upstream at work
		first.Release()
	}()
	second, _ := shaper.Acquire(context.Background(), shaping.Request{})
	defer second.Release()
	fmt.Println("first waited:", first.Queued)
	fmt.Println("second waited:", second.Queued)
	fmt.Println("in flight:", shaper.Snapshot().InFlight)
	// Output:
	// first waited: false
	// second waited: true
	// in flight: 1
}

// Who is of a better class goes first, but waiting makes up for class: after 4 s
// the report counts as much as a payment, as the pages do after 2 s, and it came
// before them.
func ExampleLine_classes() {
	rate, _ := limiter.ParseRate("1/s")
	line := shaping.NewLine[string](shaping.Terms{
		Rate: rate, Burst: 1, Queue: 10, MaxWait: time.Minute, PromoteAfter: 2 * time.Second,
	})
	line.Arrive(0, "at once")
	line.Enter(0, shaping.Entrant{Class: queue.Low}, "report")
	for i := range 4 {
		line.Enter(0, shaping.Entrant{Class: queue.Normal}, fmt.Sprint("page ", i+1))
	}
	line.Enter(0, shaping.Entrant{Class: queue.High}, "payment")
	drain(&line, 0)
	// Output:
	// 1s payment
	// 2s page 1
	// 3s page 2
	// 4s report
	// 5s page 3
	// 6s page 4
}

// Flows take turns, and a flood fills no more than its share of a full queue.
func ExampleLine_turns() {
	rate, _ := limiter.ParseRate("1/s")
	line := shaping.NewLine[string](shaping.Terms{Rate: rate, Burst: 1, Queue: 4, MaxWait: time.Minute})
	line.Arrive(0, "at once")
	for i := range 4 {
		line.Enter(0, shaping.Entrant{Flow: "flood"}, fmt.Sprint("flood ", i+1))
	}
	for i := range 2 {
		_, _, out := line.Enter(0, shaping.Entrant{Flow: "client"}, fmt.Sprint("client ", i+1))
		fmt.Println("put out:", out.Value)
	}
	drain(&line, 0)
	// Output:
	// put out: flood 4
	// put out: flood 3
	// 1s flood 1
	// 2s client 1
	// 3s flood 2
	// 4s client 2
}

package admin

import (
	"fmt"
	"reflect"
	"sync"
	"testing"

	"github.com/shapeproxy/shapeproxy/limiter"
)

func TestTally(t *testing.T) {
	var tally Tally
	one := func(d limiter.Decision) { tally.Decided("/", []limiter.Decision{d}) }
	one(limiter.Decision{Policy: "a", Allowed: true}) // before it is known
	tally.Configure([]string{"a", "b"})
	one(limiter.Decision{Policy: "a", Allowed: true})
	one(limiter.Decision{Policy: "a", Allowed: true, Peeked: true})
	one(limiter.Decision{Policy: "a", Allowed: true, Queued: true})
	one(limiter.Decision{Policy: "a", Allowed: true, Queued: true, DryRun: true})
	one(limiter.Decision{Policy: "a", Reason: limiter.ReasonShutdown, Queued: true})
	one(limiter.Decision{Policy: "a", Reason: limiter.ReasonMissingKey})
	one(limiter.Decision{Policy: "a", Reason: limiter.ReasonClientGone})
	one(limiter.Decision{Policy: "c", Allowed: true})
	tally.Decided("/", []limiter.Decision{{Policy: "b", Allowed: true}, {Policy: "a", Reason: limiter.ReasonLimit}})

	want := decisionsJSON{
		Admitted: 1, Queued: 2, Gone: 1,
		Rejected: map[limiter.Reason]uint64{limiter.ReasonShutdown: 1, limiter.ReasonMissingKey: 1, limiter.ReasonLimit: 1},
	}
	if got := tally.decisions("a"); !reflect.DeepEqual(got, want) {
		t.Errorf("a: %+v, want %+v", got, want)
	}
	if got := tally.decisions("c"); got.totals() != (totals{}) {
		t.Errorf("c is not configured and counts %+v", got)
	}

	// A reload keeps what stays, and a limit that comes back begins anew.
	tally.Configure([]string{"a", "c"})
	tally.Configure([]string{"a", "b"})
	if got := tally.decisions("a"); !reflect.DeepEqual(got, want) {
		t.Errorf("a after a reload: %+v, want %+v", got, want)
	}
	if got := tally.decisions("b"); got.totals() != (totals{}) {
		t.Errorf("b after it was away: %+v", got)
	}
}

// Inventing names makes nothing grow.
func TestTallyIsBounded(t *testing.T) {
	var tally Tally
	tally.Configure([]string{"a"})
	for i := range 10_000 {
		tally.Decided("/", []limiter.Decision{{Policy: fmt.Sprint(i), Allowed: true}, {Policy: "a", Reason: limiter.Reason(fmt.Sprint(i))}})
	}
	if n := len(*tally.limits.Load()); n != 1 {
		t.Errorf("%d limits, want 1", n)
	}
	if got := tally.decisions("a"); len(got.Rejected) != 0 {
		t.Errorf("%d reasons that are none", len(got.Rejected))
	}
}

func TestTallyAddsUp(t *testing.T) {
	var tally Tally
	tally.Configure([]string{"a"})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 500 {
				tally.Decided("/", []limiter.Decision{{Policy: "a", Allowed: true}, {Policy: "a", Reason: limiter.ReasonQueueFull}})
				if i%100 == 0 {
					tally.Configure([]string{"a", "b"})
				}
			}
		})
	}
	wg.Wait()
	if got, want := tally.decisions("a").totals(), (totals{admitted: 4000, rejected: 4000}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestCountingAllocatesNothing(t *testing.T) {
	var tally Tally
	tally.Configure([]string{"a"})
	decisions := []limiter.Decision{{Policy: "a", Allowed: true}, {Policy: "a", Reason: limiter.ReasonQueueFull}}
	if n := testing.AllocsPerRun(100, func() { tally.Decided("/", decisions) }); n > 0 {
		t.Errorf("%v allocations a request", n)
	}
}

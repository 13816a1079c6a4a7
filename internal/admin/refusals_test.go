package admin

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// Alike refusals of a second are one line, others push out the oldest.
func TestLastRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmin(nil)
		refuse := func(route string, reason limiter.Reason) {
			a.opts.Tally.Decided(route, []limiter.Decision{{Policy: "fragile", Reason: reason}})
		}
		told := func() (all []string) {
			var got struct {
				Refusals []struct {
					T             int64
					Reason, Route string
					Count         int
				}
			}
			if err := json.Unmarshal(ask(a, "GET /api/limits/fragile/refusals", "").Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			for _, r := range got.Refusals {
				all = append(all, fmt.Sprintf("%d×%s %s %ds ago", r.Count, r.Reason, r.Route, (time.Now().UnixMilli()-r.T)/1000))
			}
			return all
		}
		refuse("/", limiter.ReasonClientGone) // which is no refusal
		if got := told(); got != nil {
			t.Errorf("at first %q", got)
		}
		for range 1000 {
			refuse("/", limiter.ReasonQueueFull)
		}
		time.Sleep(time.Second)
		refuse("/", limiter.ReasonQueueFull)
		refuse("/a", limiter.ReasonQueueFull)
		refuse("/a", limiter.ReasonMaxWait)
		want := []string{"1×max_wait /a 0s ago", "1×queue_full /a 0s ago", "1×queue_full / 0s ago", "1000×queue_full / 1s ago"}
		if got := told(); !reflect.DeepEqual(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		for i := range 100 {
			refuse(fmt.Sprint("/", i), limiter.ReasonQueueFull)
		}
		if got := told(); len(got) != refusalsKept || got[0] != "1×queue_full /99 0s ago" || got[refusalsKept-1] != "1×queue_full /80 0s ago" {
			t.Errorf("after a hundred more %q", got)
		}
	})
}

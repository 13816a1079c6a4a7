package shaping

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
)

func TestWaitingInTheOrderOfTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Policy{Name: "q", Rate: limiter.Rate{Count: 1, Per: time.Hour}, Burst: 1, Queue: 10, MaxWait: 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		var ended []chan struct{}
		come := func(key, flow string, class queue.Class) {
			done := make(chan struct{})
			ended = append(ended, done)
			go func() {
				defer close(done)
				_, _ = s.Acquire(t.Context(), Request{Key: key, Flow: flow, Class: class})
			}()
			synctest.Wait()
			time.Sleep(time.Second)
		}
		for range 4 { // the first one passes
			come("a", "x", queue.Normal)
		}
		come("a", "y", queue.Normal)
		come("a", "x", queue.High)
		come("b", "z", queue.Low) // passes
		come("b", "z", queue.Low)

		say := func(n int) string {
			var all []string
			for _, w := range s.Waiting(n) {
				all = append(all, fmt.Sprintf("%s:%s:%s:%v", w.Key, w.Class, w.Flow, w.Waited))
			}
			return strings.Join(all, " ")
		}
		want := "a:high:x:3s a:normal:x:7s a:normal:y:4s a:normal:x:6s a:normal:x:5s b:low:z:1s"
		if got := say(100); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if got, want := say(2), "a:high:x:3s a:normal:x:7s"; got != want {
			t.Errorf("two of them are %s, want %s", got, want)
		}
		if got := say(0); got != "" {
			t.Errorf("none of them are %s", got)
		}

		// Of more keys than are known by name, all are found.
		for i := range 200 {
			s.Acquire(t.Context(), Request{Key: fmt.Sprint(i)})
			come(fmt.Sprint(i), "", queue.Normal)
		}
		unknown := 0
		for _, w := range s.Waiting(1000) {
			if !w.Known {
				unknown++
			}
		}
		if n := len(s.Waiting(1000)); n != 206 || unknown == 0 {
			t.Errorf("%d wait, %d of them under a key that is not known", n, unknown)
		}
		for _, done := range ended {
			<-done
		}
	})
}

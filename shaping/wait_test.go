package shaping_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A client of an API that takes ten calls a second, from however many
// goroutines.
func ExampleShaper_Wait() {
	rate, err := limiter.ParseRate("10/s")
	if err != nil {
		panic(err)
	}
	calls, err := shaping.New(shaping.Policy{Name: "calls", Rate: rate, Burst: 1, Queue: 100})
	if err != nil {
		panic(err)
	}
	for n := range 3 {
		if err := calls.Wait(context.Background(), "api.example.com"); err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("call", n)
	}
	// Output:
	// call 0
	// call 1
	// call 2
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := shaping.New(shaping.Policy{Name: "calls", Rate: limiter.Rate{Count: 1, Per: time.Second}, Burst: 1, Queue: 2})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		left := errors.New("had enough")
		patient, leave := context.WithCancelCause(t.Context())
		hurried, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		wait := func(ctx context.Context, want time.Duration, is func(error) bool) {
			go func() {
				if err := s.Wait(ctx, "a"); !is(err) || time.Since(start) != want {
					t.Errorf("%v after %v, want %v", err, time.Since(start), want)
				}
			}()
			synctest.Wait()
		}
		fine := func(err error) bool { return err == nil }
		refused := func(why limiter.Reason, after time.Duration) func(error) bool {
			return func(err error) bool {
				var r *shaping.Refusal
				return errors.As(err, &r) && r.Reason == why && r.RetryAfter == after
			}
		}
		wait(t.Context(), 0, fine)
		wait(hurried, time.Second, fine)
		wait(hurried, 0, refused(limiter.ReasonMaxWait, 500*time.Millisecond)) // its turn would come after its end
		wait(patient, 1200*time.Millisecond, func(err error) bool { return err == left })
		wait(t.Context(), 0, refused(limiter.ReasonQueueFull, time.Second))
		time.Sleep(1200 * time.Millisecond)
		leave(left)
		wait(t.Context(), 2*time.Second, fine) // moved up
		time.Sleep(time.Minute)

		s, err = shaping.New(shaping.Policy{MaxInFlight: 1})
		if err != nil {
			t.Fatal(err)
		}
		if s.Wait(t.Context(), "a") == nil {
			t.Error("waited for a place that it cannot give back")
		}
	})
}

package ledger

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

func TestSlack(t *testing.T) {
	hundred, _ := limiter.NewRate(100, time.Second) // one each 10 ms
	seven, _ := limiter.NewRate(7, time.Minute)
	tests := []struct {
		name  string
		rate  limiter.Rate
		burst int64
		ms    []float64
		want  time.Duration
	}{
		{"none", hundred, 1, nil, 0},
		{"one", hundred, 1, []float64{5}, 0},
		{"on schedule", hundred, 1, []float64{0, 10, 20, 30}, 0},
		{"one late, the next on schedule", hundred, 1, []float64{0, 11.5, 20, 30}, 1500 * time.Microsecond},
		{"late and caught up over two", hundred, 1, []float64{0, 12, 21, 30}, 2 * time.Millisecond},
		{"pause saves nothing", hundred, 1, []float64{0, 1000, 1001}, 9 * time.Millisecond},
		{"unsorted", hundred, 1, []float64{20, 0, 10}, 0},
		{"two at once", hundred, 1, []float64{0, 0}, 10 * time.Millisecond},
		{"a burst", hundred, 3, []float64{0, 0, 0, 10}, 0},
		{"more than a burst", hundred, 3, []float64{0, 0, 0, 0, 10}, 10 * time.Millisecond},
		{"a rate of no whole interval", seven, 1, []float64{0, 60_000. / 7}, 1}, // 0.4 ns early after rounding
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var instants []time.Time
			for _, ms := range tt.ms {
				instants = append(instants, time.Unix(0, int64(ms*1e6)))
			}
			if got := Slack(instants, tt.rate, tt.burst); got != tt.want {
				t.Errorf("Slack = %v, want %v", got, tt.want)
			}
		})
	}
}

// TestSlackAgainstEveryPair compares with the promise as it is written: for
// every two departures, their number against the time between them.
func TestSlackAgainstEveryPair(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	rate, _ := limiter.NewRate(125, time.Second)
	for range 200 {
		var instants []time.Time
		at := int64(0)
		for range 30 {
			at += random.Int64N(17e6)
			instants = append(instants, time.Unix(0, at))
		}
		random.Shuffle(len(instants), func(i, j int) { instants[i], instants[j] = instants[j], instants[i] })
		s := Slack(slices.Clone(instants), rate, 1)
		slices.SortFunc(instants, time.Time.Compare)
		tight := s == 0
		for i := range instants {
			for j := i; j < len(instants); j++ {
				n, between := time.Duration(j-i+1), instants[j].Sub(instants[i])
				allowed := func(s time.Duration) bool { return (n-1)*8*time.Millisecond <= between+s }
				if !allowed(s) {
					t.Fatalf("%d in %v break the promise with a slack of %v", n, between, s)
				}
				tight = tight || !allowed(s-1)
			}
		}
		if !tight {
			t.Fatalf("a slack of %v is more than is needed", s)
		}
	}
}

package ledger

import (
	"slices"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// Slack is the smallest s for which the instants keep "in any interval of
// length t at most rate × (t + s) + burst", and zero if they keep it without.
// It sorts them.
//
// For the i-th and the j-th instant that is (j − i + 1 − burst)/rate ≤ t(j) − t(i) + s, so
// s is the most that k/rate − t(k) grows from any i to any later j, which one
// pass finds by keeping the least seen so far. Times rate.Count, all is whole
// numbers and exact.
func Slack(instants []time.Time, rate limiter.Rate, burst int64) time.Duration {
	if len(instants) == 0 {
		return 0
	}
	slices.SortFunc(instants, time.Time.Compare)
	first := instants[0]
	var least, worst int64
	for k, at := range instants {
		ahead := int64(k)*int64(rate.Per) - rate.Count*int64(at.Sub(first))
		least = min(least, ahead)
		worst = max(worst, ahead-least)
	}
	worst = max(0, worst-(burst-1)*int64(rate.Per))
	return time.Duration((worst + rate.Count - 1) / rate.Count) // rounded up: never too kind
}

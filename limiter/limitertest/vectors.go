package limitertest

import (
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A Vector is a course of charges and the decisions that must come of them. It
// begins where a window of the longest policy begins.
type Vector struct {
	Name     string
	Policies []limiter.Policy
	Steps    []Step
}

// A Step is one Take, At after the vector's begin.
type Step struct {
	At      time.Duration
	Charges []Charge
	Want    []Want // one for each charge
}

// A Want is the part of a Decision that depends on the state.
type Want struct {
	Allowed                bool
	Remaining              int64
	ResetAfter, RetryAfter time.Duration
}

const (
	ms = time.Millisecond
	s  = time.Second
)

func ok(remaining int64, reset time.Duration) Want { return Want{true, remaining, reset, 0} }

func no(remaining int64, reset, retry time.Duration) Want {
	return Want{false, remaining, reset, retry}
}

// one charges the first limit; pair charges limits 0 and 1.
func one(at time.Duration, key string, cost int64, want Want) Step {
	return Step{at, []Charge{{0, key, cost}}, []Want{want}}
}

func pair(at time.Duration, a, b Charge, wantA, wantB Want) Step {
	return Step{at, []Charge{a, b}, []Want{wantA, wantB}}
}

func second(at time.Duration, key string, cost int64, want Want) Step {
	return Step{at, []Charge{{1, key, cost}}, []Want{want}}
}

func bucket(a limiter.Algorithm, count int64, per time.Duration, burst int64) limiter.Policy {
	return limiter.Policy{Name: "test", Algorithm: a, Rate: limiter.Rate{Count: count, Per: per}, Burst: burst}
}

func policies(p ...limiter.Policy) []limiter.Policy { return p }

// Vectors are the courses that every store must follow to the letter.
var Vectors = []Vector{
	{"N1_N2_N4_RefusalsAreNotCharged", policies(bucket(limiter.TokenBucket, 2, s, 2)), []Step{
		one(0, "a", 1, ok(1, 500*ms)),
		one(0, "a", 1, ok(0, 500*ms)),
		one(0, "a", 1, no(0, 500*ms, 500*ms)),
		one(0, "a", 1, no(0, 500*ms, 500*ms)),
		one(100*ms, "a", 1, no(0, 400*ms, 400*ms)),
		one(100*ms, "a", 2, no(0, 400*ms, 900*ms)),
		one(499*ms, "a", 1, no(0, 1*ms, 1*ms)),
		one(500*ms, "a", 1, ok(0, 500*ms)),
		one(500*ms, "a", 1, no(0, 500*ms, 500*ms)),
	}},
	{"N6_LevelNeverBelowZero", policies(bucket(limiter.LeakyBucket, 1000, s, 1)), []Step{
		one(0, "a", 1, ok(0, 1*ms)),
		one(100*ms, "a", 1, ok(0, 1*ms)),
		one(100*ms, "a", 1, no(0, 1*ms, 1*ms)),
	}},
	{"N7_to_N12_TwoLimits", policies(
		bucket(limiter.TokenBucket, 1, 60*s, 1),
		bucket(limiter.TokenBucket, 1000, s, 1),
	), []Step{
		second(0, "f", 1, ok(0, 1*ms)), // N7: the fast limit alone always passes
		second(1*ms, "f", 1, ok(0, 1*ms)),
		second(2*ms, "f", 1, ok(0, 1*ms)),
		one(2*ms, "s", 1, ok(0, 60*s)), // N8: the slow one alone refuses the second
		one(2*ms, "s", 1, no(0, 60*s, 60*s)),
		// N9: both; the slow one refuses and the fast one is not charged.
		pair(3*ms, Charge{0, "s", 1}, Charge{1, "f", 1}, no(0, 60*s-1*ms, 60*s-1*ms), ok(1, 0)),
		second(3*ms, "f", 1, ok(0, 1*ms)),
		{3 * ms, nil, nil}, // N10: no key, no charge, no decision
		// N12: keys are independent, of each other and between limits.
		pair(4*ms, Charge{0, "t", 1}, Charge{1, "s", 1}, ok(0, 60*s), ok(0, 1*ms)),
		// The order in which limits are named does not matter.
		pair(5*ms, Charge{1, "s", 1}, Charge{0, "t", 1}, ok(1, 0), no(0, 60*s-1*ms, 60*s-1*ms)),
	}},
	{"E1_NoSavingAboveTheBurst", policies(bucket(limiter.TokenBucket, 1, s, 1)), []Step{
		one(0, "a", 1, ok(0, s)),
		one(0, "a", 1, no(0, s, s)),
		one(0, "a", 1, no(0, s, s)),
		one(1*s, "a", 1, ok(0, s)),
		one(1*s, "a", 1, no(0, s, s)),
		one(3*s, "a", 1, ok(0, s)),
		one(3*s, "a", 1, no(0, s, s)),
	}},
	{"E2_TwoAFill", policies(bucket(limiter.TokenBucket, 2, s, 2)), []Step{
		one(0, "a", 1, ok(1, 500*ms)),
		one(0, "a", 1, ok(0, 500*ms)),
		one(0, "a", 1, no(0, 500*ms, 500*ms)),
		one(1*s, "a", 1, ok(1, 500*ms)),
		one(1*s, "a", 1, ok(0, 500*ms)),
		one(1*s, "a", 1, no(0, 500*ms, 500*ms)),
	}},
	{"E2_OneAFill", policies(bucket(limiter.TokenBucket, 1, s, 2)), []Step{
		one(0, "a", 1, ok(1, s)),
		one(0, "a", 1, ok(0, s)),
		one(0, "a", 1, no(0, s, s)),
		one(1*s, "a", 1, ok(0, s)),
		one(1*s, "a", 1, no(0, s, s)),
		one(3*s, "a", 1, ok(1, s)),
		one(3*s, "a", 1, ok(0, s)),
		one(3*s, "a", 1, no(0, s, s)),
	}},
	{"X1_BurstOfThree", policies(bucket(limiter.TokenBucket, 10, s, 3)), []Step{
		one(0, "a", 2, ok(1, 100*ms)),
		one(0, "a", 2, no(1, 100*ms, 100*ms)),
		one(0, "a", 1, ok(0, 100*ms)),
		one(0, "a", 1, no(0, 100*ms, 100*ms)),
		one(100*ms, "a", 4, no(1, 100*ms, limiter.Never)),
		one(200*ms, "a", 1, ok(1, 100*ms)),
		one(300*ms, "a", 1, ok(1, 100*ms)),
		one(400*ms, "a", 1, ok(1, 100*ms)),
		one(400*ms, "a", 1, ok(0, 100*ms)),
		one(400*ms, "a", 1, no(0, 100*ms, 100*ms)),
		one(400*ms, "a", 1, no(0, 100*ms, 100*ms)),
		one(900*ms, "a", 3, ok(0, 100*ms)),
		one(900*ms, "a", 0, ok(0, 100*ms)),
	}},
	{"C1_SlidingLog", policies(policy(limiter.SlidingWindowLog, 10, 60*s)), []Step{
		one(0, "a", 4, ok(6, 60*s)),
		one(0, "a", 5, ok(1, 60*s)),
		one(0, "a", 1, ok(0, 60*s)),
		one(0, "a", 1, no(0, 60*s, 60*s)),
		one(30*s, "a", 1, no(0, 30*s, 30*s)),
		one(61*s, "a", 1, ok(9, 60*s)),
	}},
	{"C3_KeysAndLimitsAreIndependent", policies(
		policy(limiter.SlidingWindowLog, 10, 60*s),
		policy(limiter.SlidingWindowLog, 1, 60*s),
	), []Step{
		one(0, "/a", 10, ok(0, 60*s)),
		one(0, "/b", 10, ok(0, 60*s)),
		second(0, "/a", 1, ok(0, 60*s)),
		second(0, "/b", 1, ok(0, 60*s)),
		one(0, "/a", 1, no(0, 60*s, 60*s)),
		second(0, "/b", 1, no(0, 60*s, 60*s)),
	}},
	{"C5_TogetherTheyFillTheLimit", policies(policy(limiter.SlidingWindowLog, 10, 60*s)), []Step{
		one(0, "a", 5, ok(5, 60*s)),
		one(20*s, "a", 5, ok(0, 40*s)),
		one(20*s, "a", 1, no(0, 40*s, 40*s)),
		one(20*s, "a", 6, no(0, 40*s, 60*s)), // needs one of the second five as well
		one(60*s, "a", 5, ok(0, 20*s)),       // the first five are older than the window
		one(140*s, "a", 10, ok(0, 60*s)),
	}},
	{"C7_OldestAfterPartialExpiry", policies(policy(limiter.SlidingWindowLog, 3, 10*s)), []Step{
		one(0, "a", 1, ok(2, 10*s)),
		one(4*s, "a", 1, ok(1, 6*s)),
		one(8*s, "a", 1, ok(0, 2*s)),
		one(9*s, "a", 1, no(0, 1*s, 1*s)),
		one(10*s, "a", 1, ok(0, 4*s)),
		one(14*s, "a", 1, ok(0, 4*s)),
		one(14*s, "a", 1, no(0, 4*s, 4*s)),
		one(30*s, "a", 1, ok(2, 10*s)),
	}},
	{"FixedWindow", policies(policy(limiter.FixedWindow, 2, 60*s)), []Step{
		one(10*s, "a", 1, ok(1, 50*s)),
		one(10*s, "a", 2, no(1, 50*s, 50*s)),
		one(20*s, "a", 1, ok(0, 40*s)),
		one(20*s, "a", 1, no(0, 40*s, 40*s)),
		one(59999*ms, "a", 1, no(0, 1*ms, 1*ms)),
		one(60*s, "a", 1, ok(1, 60*s)),
	}},
	// The known weakness of the fixed window, and the log on the same trace.
	{"FixedWindowDoublesAtTheBoundary", policies(policy(limiter.FixedWindow, 5, 10*s)), []Step{
		one(9*s, "a", 5, ok(0, 1*s)),
		one(10*s, "a", 5, ok(0, 10*s)),
		one(10*s, "a", 1, no(0, 10*s, 10*s)),
	}},
	{"SlidingLogDoesNotDouble", policies(policy(limiter.SlidingWindowLog, 5, 10*s)), []Step{
		one(9*s, "a", 5, ok(0, 10*s)),
		one(10*s, "a", 5, no(0, 9*s, 9*s)),
		one(10*s, "a", 1, no(0, 9*s, 9*s)),
		one(19*s, "a", 5, ok(0, 10*s)),
	}},
	{"SlidingCounter", policies(policy(limiter.SlidingWindowCounter, 10, 10*s)), []Step{
		one(0, "a", 10, ok(0, 11*s)), // until 10 × 0.9 + 1 <= 10, in the next window
		one(10*s, "a", 1, no(0, 1*s, 1*s)),
		one(11*s, "a", 1, ok(0, 1*s)), // 9 + 1
		one(15*s, "a", 5, no(4, 1*s, 1*s)),
		one(15*s, "a", 4, ok(0, 1*s)), // 5 + 1 + 4
		one(15*s, "a", 10, no(0, 1*s, 15*s)),
		one(40*s, "a", 10, ok(0, 11*s)),
	}},
	{"O1_RefusedByOneChargedToNone", policies(
		bucket(limiter.TokenBucket, 1, s, 3),
		bucket(limiter.LeakyBucket, 1, 60*s, 2),
	), []Step{
		pair(0, Charge{0, "a", 1}, Charge{1, "a", 1}, ok(2, 1*s), ok(1, 60*s)),
		pair(0, Charge{0, "a", 1}, Charge{1, "a", 1}, ok(1, 1*s), ok(0, 60*s)),
		pair(0, Charge{0, "a", 1}, Charge{1, "a", 1}, ok(1, 1*s), no(0, 60*s, 60*s)),
		one(0, "a", 1, ok(0, 1*s)),
		one(0, "a", 1, no(0, 1*s, 1*s)),
		pair(60*s, Charge{0, "a", 1}, Charge{1, "a", 1}, ok(2, 1*s), ok(0, 60*s)),
		one(120*s, "a", 1, ok(2, 1*s)),
		pair(120*s, Charge{0, "a", 3}, Charge{1, "a", 1}, no(2, 1*s, 1*s), ok(1, 60*s)),
		second(120*s, "a", 1, ok(0, 60*s)),
	}},
	{"SameStateTwice", policies(bucket(limiter.TokenBucket, 1, s, 3)), []Step{
		pair(0, Charge{0, "a", 2}, Charge{0, "a", 2}, ok(3, 0), no(3, 0, limiter.Never)),
		pair(0, Charge{0, "a", 1}, Charge{0, "a", 2}, ok(0, 1*s), ok(0, 1*s)),
	}},
	{"Case01SlowRate", policies(bucket(limiter.TokenBucket, 1, 24*time.Hour, 1)), []Step{
		one(0, "a", 1, ok(0, 24*time.Hour)),
		one(86399*s, "a", 1, no(0, 1*s, 1*s)),
		one(86400*s, "a", 1, ok(0, 24*time.Hour)),
	}},
	{"Case02SixPerMinute", policies(
		bucket(limiter.TokenBucket, 6, 60*s, 1), // unset burst: evenly spaced
		policy(limiter.FixedWindow, 6, 60*s),
	), []Step{
		one(0, "a", 1, ok(0, 10*s)),
		one(0, "a", 1, no(0, 10*s, 10*s)),
		one(10*s, "a", 1, ok(0, 10*s)),
		second(10*s, "a", 6, ok(0, 50*s)),
		second(10*s, "a", 1, no(0, 50*s, 50*s)),
	}},
	{"Case07CounterTooSmall", policies(
		policy(limiter.FixedWindow, 5_000_000_000, 365*24*time.Hour),
		policy(limiter.SlidingWindowLog, 5_000_000_000, 300_000*time.Hour),
	), []Step{
		second(0, "a", 1, ok(4_999_999_999, 300_000*time.Hour)),
		second(0, "a", 4_999_999_999, ok(0, 300_000*time.Hour)),
		second(0, "a", 1, no(0, 300_000*time.Hour, 300_000*time.Hour)),
	}},
	{"Case13IdleNotForgottenEarly", policies(
		bucket(limiter.TokenBucket, 1, s, 200),
		bucket(limiter.LeakyBucket, 1, 10*s, 1),
	), []Step{
		one(0, "a", 200, ok(0, 1*s)),
		second(0, "a", 1, ok(0, 10*s)),
		second(2*s, "a", 1, no(0, 8*s, 8*s)),
		one(3*s, "a", 4, no(3, 1*s, 1*s)),
		one(3*s, "a", 3, ok(0, 1*s)),
		one(3*s, "a", 1, no(0, 1*s, 1*s)),
	}},
	{"Case33RetryAfterIsNeverZero", policies(bucket(limiter.TokenBucket, 50, s, 1)), []Step{
		one(0, "a", 1, ok(0, 20*ms)),
		one(0, "a", 1, no(0, 20*ms, 20*ms)),
		one(19999*time.Microsecond, "a", 1, no(0, time.Microsecond, time.Microsecond)),
	}},
}

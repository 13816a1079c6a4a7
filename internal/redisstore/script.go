package redisstore

import (
	_ "embed"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

//go:embed decide.lua
var decideBody string

// serverTime makes the server's clock the script's, and lets a key live for a
// second longer than it must.
const serverTime = `
local time = redis.call('TIME')
local now, grace = tonumber(time[1]) * 1000000 + tonumber(time[2]), 1000
`

// Modes of the script.
const (
	take   = "take"
	look   = "look"
	giveIn = "return"
)

// What the script says instead of deciding.
const (
	saysRefused  = 0
	saysTaken    = 1
	saysForeign  = -1
	saysNoWindow = -2
)

// blockWidth is how many arguments the script has for each charge, and most the
// greatest number that it can hold exactly.
const (
	blockWidth = 11
	most       = 1<<53 - 1
)

var errAnswer = errors.New("the answer is not what the script gives; is another program writing to these keys?")

// terms are one policy in the words of the script.
type terms struct {
	meter  *limiter.Meter
	letter string
	tag    string
	since  int64 // µs: the policy has been this one from then on

	// one is the block of a request of cost 1 that names its key once, but for
	// what depends on the time of day.
	one [blockWidth]string
}

// check says what the script cannot count, although memory can.
func check(p limiter.Policy) error {
	if p.Algorithm.Windowed() && p.Limit > most {
		return fmt.Errorf("limit must be at most %d with store = \"redis\"", int64(most))
	}
	if p.Window%time.Microsecond != 0 {
		return errors.New("window must be a whole number of microseconds with store = \"redis\"")
	}
	return nil
}

func newTerms(p limiter.Policy, since int64) (*terms, error) {
	meter, err := limiter.NewMeter(p)
	if err == nil {
		err = check(p)
	}
	if err != nil {
		return nil, err
	}
	t := &terms{meter: meter, since: since}
	switch p.Algorithm {
	case limiter.FixedWindow:
		t.letter = "f"
	case limiter.SlidingWindowCounter:
		t.letter = "c"
	case limiter.SlidingWindowLog:
		t.letter = "l"
	default:
		t.letter = "b"
	}
	t.tag = tagOf(t.letter, p)
	t.one = t.block(1, 1)
	return t, nil
}

// tagOf is the policy as far as states depend on it.
func tagOf(letter string, p limiter.Policy) string {
	switch {
	case letter == "b":
		return fmt.Sprintf("b|%d|%d|%d", p.Rate.Count, int64(p.Rate.Per), p.Burst)
	case p.Calendar != "":
		zone := "UTC"
		if p.Location != nil {
			zone = p.Location.String()
		}
		return fmt.Sprintf("f|%d|%s|%s", p.Limit, p.Calendar, zone)
	}
	return fmt.Sprintf("%s|%d|%d", letter, p.Limit, int64(p.Window))
}

// parseTag is tagOf the other way.
func parseTag(tag string) (limiter.Policy, error) {
	parts := strings.Split(tag, "|")
	number := func(i int) int64 {
		n, err := strconv.ParseInt(parts[i], 10, 64)
		if err != nil {
			return 0 // which no policy may have
		}
		return n
	}
	var p limiter.Policy
	switch {
	case len(parts) == 4 && parts[0] == "b":
		p.Algorithm = limiter.TokenBucket
		p.Rate.Count, p.Rate.Per, p.Burst = number(1), time.Duration(number(2)), number(3)
		return p, nil
	case len(parts) == 4 && parts[0] == "f":
		loc, err := time.LoadLocation(parts[3])
		p.Algorithm, p.Limit, p.Calendar, p.Location = limiter.FixedWindow, number(1), limiter.Calendar(parts[2]), loc
		return p, err
	case len(parts) == 3 && parts[0] == "f":
		p.Algorithm = limiter.FixedWindow
	case len(parts) == 3 && parts[0] == "c":
		p.Algorithm = limiter.SlidingWindowCounter
	default:
		return p, errAnswer
	}
	p.Limit, p.Window = number(1), time.Duration(number(2))
	return p, nil
}

// block is what the script is told of a charge: cost, which with the charges
// before it on the same key comes to total.
func (t *terms) block(cost, total int64) (b [blockWidth]string) {
	p := t.meter.Policy()
	b[0], b[1] = t.letter, t.tag
	for i := 4; i < blockWidth; i++ {
		b[i] = "0"
	}
	number := func(i int, n int64) { b[3+i] = strconv.FormatInt(n, 10) }
	if t.letter == "b" {
		full := t.spanOf(p.Burst)
		room := span{us: -1} // a cost that never fits
		if total <= p.Burst {
			room = full.minus(t.spanOf(total), t.fractions())
		}
		var one span
		if cost <= p.Burst {
			one = t.spanOf(cost)
		}
		for i, s := range []span{room, one, full} {
			number(1+2*i, s.us)
			number(2+2*i, s.frac)
		}
		number(7, t.fractions())
		return b
	}
	number(1, p.Limit)
	number(2, min(total, p.Limit+1))
	number(3, min(cost, p.Limit+1))
	if p.Calendar == "" {
		number(4, p.Window.Microseconds())
	}
	switch {
	case t.letter == "l":
		number(5, t.since)
	case p.Calendar == "":
		// The phase as of Truncate: how far into its window 1970 begins.
		start, _ := t.meter.Window(0)
		number(5, -start/1000)
	}
	return b
}

// window completes a block whose window the calendar gives.
func (t *terms) window(b *[blockWidth]string, now int64) {
	if t.meter.Policy().Calendar == "" {
		return
	}
	start, end := t.meter.Window(now * 1000)
	b[8], b[9] = strconv.FormatInt(start/1000, 10), strconv.FormatInt(end/1000, 10)
}

// A span is a time in microseconds and fractions of them, of which there are
// terms.fractions in each.
type span struct{ us, frac int64 }

func (s span) minus(o span, fractions int64) span {
	s.us, s.frac = s.us-o.us, s.frac-o.frac
	if s.frac < 0 {
		s.us, s.frac = s.us-1, s.frac+fractions
	}
	return s
}

func (t *terms) fractions() int64 { return 1000 * t.meter.Policy().Rate.Count }

// spanOf is the time in which n <= burst come back.
func (t *terms) spanOf(n int64) span {
	p := t.meter.Policy()
	ns, frac := mulDiv(n, int64(p.Rate.Per), p.Rate.Count)
	return span{ns / 1000, ns%1000*p.Rate.Count + frac}
}

// mulDiv is a × b ÷ c and the remainder, by way of 128 bits.
func mulDiv(a, b, c int64) (quo, rem int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, r := bits.Div64(hi, lo, uint64(c))
	return int64(q), int64(r)
}

// words is a state as the Meter has it, of what the script answered or keeps:
// for a bucket the instant at which all is back.
func (t *terms) words(n []int64) []int64 {
	if t.letter == "b" {
		count := t.meter.Policy().Rate.Count
		return []int64{n[0]*1000 + n[1]/count, n[1] % count}
	}
	w := []int64{n[0] * 1000, n[1]}
	if t.letter == "c" {
		w = append(w, n[2])
	}
	return w
}

// text is words as the script keeps them, counted under t until at.
func (t *terms) text(w []int64, at int64) string {
	if len(w) == 0 {
		return ""
	}
	n := []int64{w[0] / 1000}
	if t.letter == "b" {
		n = append(n, w[0]%1000*t.meter.Policy().Rate.Count+w[1])
	} else {
		n = append(n, w[1:]...)
	}
	s := t.tag + " " + strconv.FormatInt(at, 10)
	for _, one := range n {
		s += " " + strconv.FormatInt(one, 10)
	}
	return s
}

// fresh is a state that has used nothing.
func (t *terms) fresh(at int64) string {
	return t.tag + " " + strconv.FormatInt(at, 10) + " 0 0 0"
}

// adopt translates a state that was counted under another policy. A state that
// nobody could have left is one to start anew from.
func (t *terms) adopt(raw string, now int64) string {
	fields := strings.Fields(raw)
	if len(fields) < 4 || len(fields) > 5 {
		return ""
	}
	p, err := parseTag(fields[0])
	if err != nil {
		return ""
	}
	was, err := newTerms(p, 0)
	if err != nil || was.letter != t.letter {
		return ""
	}
	var n [4]int64
	for i, f := range fields[1:] {
		if n[i], err = strconv.ParseInt(f, 10, 64); err != nil || n[i] > most || n[i] < -most {
			return ""
		}
	}
	// What was written after this proxy changed its policy, another proxy counted
	// under the old one until then.
	at := min(max(t.since, n[0]), now)
	w, ok := t.meter.Adopt(was.meter, was.words(n[1:]), at*1000)
	if !ok {
		return ""
	}
	return t.text(w, at)
}

// decide is what the answer's three numbers of a charge mean: to the Meter, as
// one home for what a decision tells. cost is 0 for what has been taken.
func (t *terms) decide(now int64, n []int64, cost int64) (limiter.Decision, error) {
	for _, one := range n {
		if one > most || one < -most {
			return limiter.Decision{}, errAnswer
		}
	}
	var state []int64
	switch t.letter {
	case "b":
		state = t.words([]int64{now + n[0], n[1]})
		if full := t.spanOf(t.meter.Policy().Burst); n[0] < 0 || n[0] > full.us || n[1] >= t.fractions() {
			return limiter.Decision{}, errAnswer
		}
	case "l":
		state = t.entries(now, n, cost)
	default:
		state = t.words(n)
	}
	d, ok := t.meter.Decide(state, now*1000, cost)
	if !ok {
		return d, errAnswer
	}
	d.At = time.UnixMicro(now)
	return d, nil
}

// entries is a short log that decides as the one on the server: what is used,
// when the oldest came, and when the one that must leave before cost fits.
func (t *terms) entries(now int64, n []int64, cost int64) (state []int64) {
	used, oldest, crossing := n[0], n[1], n[2]
	push := func(at, n int64) {
		switch last := len(state) - 2; {
		case n <= 0:
		case last >= 0 && state[last] == at*1000:
			state[last+1] += n
		default:
			state = append(state, at*1000, n)
		}
	}
	if used == 0 {
		return nil
	}
	push(oldest, 1)
	rest := used - 1
	if limit := t.meter.Policy().Limit; crossing > 0 && cost <= limit {
		over := used - (limit - cost)
		push(crossing, over-1)
		rest -= over - 1
	}
	push(now, rest)
	return state
}

// An answer is what the script said, of the right shape.
type answer struct {
	now     int64 // µs
	says    int64
	numbers []int64  // three for each charge
	states  []string // one for each charge, if it saysForeign
}

// earliest and latest bound a server's clock: until 2116 its microseconds fit.
const (
	earliest = 1
	latest   = math.MaxInt64 / 2 / 1000
)

func (a *answer) valid(charges int) error {
	switch {
	case a.now < earliest || a.now > latest:
		return errAnswer
	case a.says == saysNoWindow:
		return nil
	case a.says == saysForeign && len(a.states) == charges:
		return nil
	case (a.says == saysTaken || a.says == saysRefused) && len(a.numbers) == 3*charges:
		return nil
	}
	return errAnswer
}

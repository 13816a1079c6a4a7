package shaping

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// Wait waits until key's turn has come, in the order in which turns were asked
// for. It is Acquire for whoever needs no more than that.
//
// The error is a *Refusal if there is no place in the queue or the wait would
// be too long: longer than MaxWait, or than ctx has. It is then told at once
// and not after having waited in vain. When ctx ends first it is
// context.Cause(ctx). In a dry run Wait neither waits nor refuses.
//
// A limit with MaxInFlight wants to know when who was let go has ended. It
// answers Wait with an error; use Acquire and Grant.Release.
func (s *Shaper) Wait(ctx context.Context, key string) error {
	if s.Policy().MaxInFlight > 0 {
		return errors.New("a limit with max_in_flight is for Acquire: Wait cannot say when a place is given back")
	}
	req := Request{Key: key}
	if by, ok := ctx.Deadline(); ok {
		req.MaxWait = max(1, time.Until(by))
	}
	g, err := s.Acquire(ctx, req)
	g.Release()
	if err == nil && !g.Allowed && !g.DryRun {
		err = &Refusal{g.Decision}
	}
	return err
}

// A Refusal is the error of a Wait that was refused. RetryAfter says when it is
// worth asking again.
type Refusal struct{ limiter.Decision }

func (r *Refusal) Error() string {
	return fmt.Sprintf("refused by limit %q: %s, try again in %s", r.Policy, r.Reason, r.RetryAfter)
}

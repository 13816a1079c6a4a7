package redisstore

import (
	"context"
	"sync/atomic"
	"time"
)

// deadlines are contexts that many calls share, as one of its own would be most
// of what a call costs here.
type deadlines struct{ last atomic.Pointer[deadline] }

type deadline struct {
	ctx    context.Context
	cancel context.CancelFunc // never called: others may wait by it still
	fresh  time.Time          // until then it serves calls that begin
}

// coarse is by what part of itself a timeout may be shorter than asked for.
const coarse = 64

// within returns a context that ends after d, or up to a 64th of d sooner.
func (l *deadlines) within(d time.Duration) context.Context {
	now := time.Now()
	if last := l.last.Load(); last != nil && now.Before(last.fresh) {
		return last.ctx
	}
	next := &deadline{fresh: now.Add(d / coarse)}
	next.ctx, next.cancel = context.WithDeadline(context.Background(), now.Add(d))
	l.last.Store(next)
	return next.ctx
}

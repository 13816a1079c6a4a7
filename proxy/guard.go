package proxy

import (
	"net/http"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A Guard is a handler behind a limiter, in a program that serves itself what
// it limits and needs no proxy. Clients are told and refused as a Handler does.
//
// Its fields must not change while it serves.
type Guard struct {
	// Next serves what the Limiter lets go, and holds its place, if the Limiter
	// has such, until it returns.
	Next http.Handler

	// Limiter decides: a [limiter.Limit], or the several limits and queues of a
	// shaping.Chain.
	Limiter limiter.Limiter

	// Identify returns a key for each limit that the Limiter asks. An error is
	// answered with 400 and its text.
	Identify func(*http.Request) ([]limiter.Key, error)

	// Dialects are how clients are told what is left; nil: not at all but by
	// Retry-After.
	Dialects []Dialect
}

// ServeHTTP asks, and then serves or refuses. A client that left while it
// waited gets nothing, and Next does not hear of it.
func (g *Guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	keys, err := g.Identify(r)
	if err != nil {
		answerFault(w, r, http.StatusBadRequest, err.Error())
		return
	}
	permit, err := g.Limiter.Acquire(r.Context(), limiter.Request{Keys: keys})
	switch {
	case err != nil && r.Context().Err() != nil:
		w.WriteHeader(StatusClientGone)
	case err != nil:
		answerFault(w, r, http.StatusInternalServerError, "the limits could not be asked")
	default:
		WriteRateLimit(w.Header(), g.Dialects, permit)
		if !permit.Allowed {
			body, code := refusal(w.Header(), permit)
			body.write(w, r, code)
			return
		}
		defer permit.Release()
		g.Next.ServeHTTP(w, r)
	}
}

func answerFault(w http.ResponseWriter, r *http.Request, status int, detail string) {
	problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}.write(w, r, grpcStatus(status))
}

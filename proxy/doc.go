// Package proxy is the HTTP side: a handler that picks a request's route, asks
// the route's [limiter.Limiter] whether and when the request may go on, and
// forwards it or says why not.
//
// One admission is at most one request at the upstream: nothing below the
// handler sends a request again, but for a kept connection that was found dead
// before a byte was written; what a [RetryPolicy] has sent again takes another
// turn. A request whose client has left is never sent, and what a client did
// wrong is never an upstream's fault.
//
// A [Site] says what is served and can be exchanged while requests run; an
// [Observer] is told the story of each as an [Event]. NewServer is net/http's
// server with the settings that the handler relies on.
package proxy

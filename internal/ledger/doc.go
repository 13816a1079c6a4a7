// Package ledger is the test harness that holds the queue to its promise over
// real sockets: it keeps a ledger of every request, in which the client's side,
// the upstream's side and the proxy's own log and metrics are written down, and
// audits it afterwards.
//
// A [Ledger] gives each request an id, which travels as its Host. A [Client]
// sends requests and writes down how each ended, a client that leaves
// included; [Ledger.Upstream] is a server that writes down what arrives.
// Client and upstream live in the test's process and use one monotonic clock.
// [Watch] measures meanwhile for how long the machine had no time for
// anybody, as no program can keep a promise about time that it was not given.
//
// [Ledger.Audit] then names what broke:
//
//   - ended: a request that did not end exactly once, or differently by the
//     client's and by the proxy's account
//   - twice: an id more than once at the upstream
//   - refused, gone: an id at the upstream that was refused, or whose client had
//     left before its release
//   - rate: more departures, or arrivals, in some interval than the limit allows
//   - places: more unfinished requests at the upstream than the limit allows
//   - idle: nobody left though somebody waited and the rate and the places allowed it
//   - order: a request overtaken within its class and flow
//   - counts: metrics that do not add up with the log
//
// Tests only import it.
package ledger

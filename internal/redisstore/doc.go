// Package redisstore keeps the budgets of limits on Redis or Valkey, so that
// several proxies keep one promise. It is the only importer of its client
// library.
//
// A request's limits are asked in one call of one Lua script, which takes all
// charges or none. The script compares and adds, and the server's clock is the
// only one; what a decision tells of the budget is computed here by the same
// [limiter.Meter] that decides in memory, which is how the two are equal to the
// nanosecond. Limits are told apart by name, and clients by a keyed hash, so
// that nobody who reads the server learns who they are.
//
// A queue shares no more than a schedule: each proxy asks for the next few of its
// [Departures], and lets its own waiters go at those instants.
//
// A server that does not answer costs a request at most Options.Timeout, and
// after a few such requests nothing: the circuit opens, every limit does what
// its [Down] says, and a probe a fifth of a second looks for the server.
package redisstore

// Package replay tries a configuration on yesterday's log: it reads access logs,
// finds the route and the keys of every request as the proxy would, and puts
// them in virtual time to the same meters and lines that serve live requests.
//
// What a log cannot tell is not made up. Clients do not retry and do not give
// up, and how long the upstream takes for a request is what the log says, or
// what the caller says for logs that do not.
package replay

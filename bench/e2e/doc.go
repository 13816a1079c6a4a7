// Package e2e runs the real proxy in front of a server that nobody here wrote,
// Debian's nginx, with the requests of a real access log, and holds the logs of
// all three sides against each other: what the clients got, what the proxy says
// that it did, and what nginx saw.
//
// Plain go test sends the first 1,000 requests; make e2e sends all 10,000,
// twice.
package e2e

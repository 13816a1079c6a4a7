// Package ledger runs the real proxy through what a queue has to live through,
// and holds every request to account; see package internal/ledger for what is
// checked of each run.
//
// Plain go test runs some of the scenarios, make e2e all of them, and prints
// the table that bench/README.md has.
package ledger

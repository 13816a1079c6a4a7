// Package fleet runs several real proxies on one real server, before one upstream
// that notes when each request arrives, and holds what arrived, what the proxies say
// of their departures, and what the server granted against the promise that they
// keep together: in steady state, while a proxy is killed, while the server is
// restarted, and while it is gone.
//
// Plain go test runs each for a few seconds. FLEET=full takes as long as the tables
// in bench/README.md say, and prints them.
package fleet

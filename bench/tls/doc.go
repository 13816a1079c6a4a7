// Package tls runs the real proxy against a real ACME server, Pebble of Let's
// Encrypt, which rejects half of all nonces, by the README's own example: it
// obtains certificates by either challenge, keeps them through restarts, goes on
// when the server is gone, and starts again when the server died in mid-order.
package tls

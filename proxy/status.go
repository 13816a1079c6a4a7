package proxy

// An UpstreamStatus is one upstream as it stands at the instant it was asked
// for.
type UpstreamStatus struct {
	Name     string
	InFlight int64 // requests sent, or being sent, whose answers have not ended
}

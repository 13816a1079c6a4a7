package admin

import (
	"net/http"
	"net/http/pprof"
	"strings"
)

// profilesPath is where Go's profiles are, if they were asked for: they tell
// what is in memory, and taking one takes time from the proxy.
const profilesPath = "/debug/pprof/"

// profile is what answers at a path below profilesPath; nil if nothing does.
// The package's own registration on http.DefaultServeMux is served nowhere.
func (a *Admin) profile(path string) http.HandlerFunc {
	name, ok := strings.CutPrefix(path, profilesPath)
	if !ok || !a.opts.Pprof {
		return nil
	}
	switch name {
	case "cmdline":
		return nil // it may hold secrets
	case "profile":
		return pprof.Profile
	case "symbol":
		return pprof.Symbol
	case "trace":
		return pprof.Trace
	}
	return pprof.Index
}

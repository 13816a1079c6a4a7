package autotls

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/shapeproxy/shapeproxy/internal/identity"
)

// Plain answers plain HTTP: the CA's questions, and everybody else with where
// to come instead. It goes by names that there are certificates for, so that
// nobody can be sent elsewhere.
//
// Only GET and HEAD are redirected, by 308, which browsers and caches may keep.
// Other requests have shown what they carry to everybody on the way already,
// and whoever sends them should learn of it rather than be helped to go on.
func (s *Source) Plain() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := identity.NormalHost(r.Host)
		target := r.URL.RequestURI()
		switch {
		case !strings.HasPrefix(target, "/"): // behind the name, it could make another one
			refusePlain(w, r, http.StatusBadRequest, "the request target has a form that is not answered here\n")
		case s.acme != nil && s.acme.answers(w, r, name):
		case !s.knows(name):
			refusePlain(w, r, http.StatusMisdirectedRequest, "there is no certificate for this name here\n")
		case r.Method == http.MethodGet || r.Method == http.MethodHead:
			w.Header().Set("Location", "https://"+name+s.portAfter(r.Host)+target)
			w.WriteHeader(http.StatusPermanentRedirect)
		default:
			refusePlain(w, r, http.StatusForbidden, "only https is spoken here; what was sent went over the network in the clear\n")
		}
	})
}

func refusePlain(w http.ResponseWriter, r *http.Request, status int, text string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	h.Set("Proxy-Status", "shapeproxy; error=http_request_denied")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = io.WriteString(w, text) // a client that has gone needs no answer
	}
}

// portAfter is what follows the name in a redirect. A client that came by
// another port than ours came through somebody who maps ports, and who will have
// mapped the standard one of https too.
func (s *Source) portAfter(hostport string) string {
	_, came, err := net.SplitHostPort(hostport)
	if err != nil {
		came = "80"
	}
	if s.tlsPort == 0 || s.tlsPort == 443 || came != strconv.Itoa(s.plainPort) {
		return ""
	}
	return ":" + strconv.Itoa(s.tlsPort)
}

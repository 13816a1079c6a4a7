package proxy

import (
	"errors"
	"net/http"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// ErrNoRoute says that a request would have been answered with 404 or 405.
var ErrNoRoute = errors.New("no route matches")

// Find says where a request would go and whose budgets it would use, and sends
// nothing: it is for whoever tries a configuration on requests that were made
// long ago. Any error but ErrNoRoute means that the request would have been
// answered with 400 (405 for a method that is never forwarded).
//
// Of the request it reads Method, Host, RequestURI, URL, Header, RemoteAddr and
// ProtoMajor.
func (p *Proxy) Find(r *http.Request) (*Route, []limiter.Key, error) {
	site := p.site.Load()
	to, bad := readTarget(r)
	if bad != nil {
		return nil, nil, errors.New(bad.detail)
	}
	found := site.table.find(r.Method, to)
	if found.route == nil {
		return nil, nil, ErrNoRoute
	}
	if found.route.Identify == nil {
		return found.route, nil, nil
	}
	of := Identity{Request: r, Host: to.host, Route: found.route.Match, PathValue: found.shadow.PathValue}
	if site.Client != nil {
		of.Client, _ = site.Client(r.RemoteAddr, r.Header["X-Forwarded-For"])
	}
	keys, err := found.route.Identify(of)
	return found.route, keys, err
}

package config

import (
	"errors"
	"net/url"
)

func (d *decoder) tracing(t *table) Tracing {
	c := Tracing{Sample: 1}
	t.text("endpoint", `a URL such as "http://127.0.0.1:4318"`, func(s string) error {
		u, err := url.Parse(s)
		switch {
		case s == "":
			return nil
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
			return errors.New("is not a URL; write where the collector takes OTLP over HTTP, such as \"http://127.0.0.1:4318\"")
		case u.User != nil || u.RawQuery != "" || u.Fragment != "":
			return discreet("takes no password, query or fragment; write \"http://127.0.0.1:4318\"")
		}
		c.Endpoint = s
		return nil
	})
	t.ratio("sample", &c.Sample)
	t.finish()
	return c
}

package admin

import (
	"bytes"
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/shapeproxy/shapeproxy/limiter"
)

func description(t *testing.T) (*openapi3.T, routers.Router) {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(openAPI)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		t.Fatal(err)
	}
	router, err := legacy.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	return doc, router
}

// Every call is described, and nothing else.
func TestOpenAPIHasEveryCall(t *testing.T) {
	doc, _ := description(t)
	described := make(map[string]bool)
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			described[method+" "+path] = true
		}
	}
	for _, e := range endpoints {
		if !described[e.method+" "+e.path] {
			t.Errorf("%s %s is not described", e.method, e.path)
		}
		delete(described, e.method+" "+e.path)
	}
	for call := range described {
		t.Errorf("%s is described, and is not there", call)
	}
}

// What the handlers answer is what the description says, good calls and bad
// ones.
func TestOpenAPIIsTrue(t *testing.T) {
	_, router := description(t)
	var done []string
	var a *Admin
	for _, call := range []struct{ target, body, header string }{
		{"GET /api/limits", "", ""}, {"GET /api/limits/fragile", "", ""}, {"GET /api/limits/daily.quota", "", ""},
		{"GET /api/limits/none", "", ""}, {"GET /api/limits", "", "Host: elsewhere.example"},
		{"GET /api/openapi.json", "", ""}, {"GET /healthz", "", ""}, {"GET /readyz", "", ""}, {"GET /metrics", "", ""},
		{"POST /api/reload", "", ""}, {"POST /api/reload", "", "Sec-Fetch-Site: cross-site"},
		{"PATCH /api/limits/fragile", `{"rate": "5/s", "queue": 7}`, ""}, {"PATCH /api/limits/fragile", `{"rate": "0"}`, ""},
		{"PATCH /api/limits/fragile", `{}`, ""}, {"PATCH /api/limits/none", `{"rate": "5/s"}`, ""},
		{"POST /api/limits/fragile/pause", `{"for": "30s"}`, ""}, {"POST /api/limits/fragile/pause", "", ""},
		{"POST /api/limits/per-client/pause", "", ""}, {"POST /api/limits/none/pause", "", ""},
		{"POST /api/limits/fragile/resume", "", ""},
		{"GET /api/limits/per-client/keys?top=5", "", ""}, {"GET /api/limits/daily.quota/keys", "", ""}, {"GET /api/limits/fragile/keys", "", ""},
		{"GET /api/limits/per-client/keys?top=x", "", ""}, {"GET /api/limits/none/keys", "", ""},
		{"GET /api/limits/per-client/keys/costly", "", ""}, {"GET /api/limits/per-client/keys/id:0", "", ""},
		{"GET /api/limits/fragile/waiting", "", ""}, {"GET /api/limits/per-client/waiting", "", ""}, {"GET /api/limits/none/waiting", "", ""},
		{"GET /api/limits/fragile/refusals", "", ""}, {"GET /api/limits/none/refusals", "", ""},
		{"DELETE /api/limits/per-client/keys/a", "", ""}, {"DELETE /api/limits/none/keys/a", "", ""},
	} {
		a = recording(&done, new(bytes.Buffer))
		a.opts.Tally.Decided("/", []limiter.Decision{{Policy: "fragile", Reason: limiter.ReasonQueueFull}})
		header := call.header
		if header == "" {
			header = "Accept: */*"
		}
		w := ask(a, call.target, call.body, asJSON, header)

		method, path, _ := strings.Cut(call.target, " ")
		r := httptest.NewRequest(method, "http://localhost"+path, strings.NewReader(call.body))
		r.Header.Set("Content-Type", "application/json")
		route, params, err := router.FindRoute(r)
		if err != nil {
			t.Errorf("%s: %v", call.target, err)
			continue
		}
		input := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route,
			Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true}}
		if w.Code < 400 && call.body != "" {
			if err := openapi3filter.ValidateRequest(context.Background(), input); err != nil {
				t.Errorf("%s %s was taken, against the description: %v", call.target, call.body, err)
			}
		}
		answer := &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: w.Code, Header: w.Header(), Options: input.Options}
		answer.SetBodyBytes(w.Body.Bytes())
		if err := openapi3filter.ValidateResponse(context.Background(), answer); err != nil {
			t.Errorf("%s %s: %d %s\nis not as described: %v", call.target, call.body, w.Code, w.Body, err)
		}
	}
}

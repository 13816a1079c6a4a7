package identity

import (
	"slices"
	"strings"
	"testing"
)

func key(t testing.TB, words ...string) Key {
	t.Helper()
	k, err := ParseKey(words)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestParseKey(t *testing.T) {
	for _, tt := range []struct {
		words []string
		want  string
	}{
		{[]string{"global"}, "global"},
		{[]string{"client-ip"}, "client-ip"},
		{[]string{"header:x-API-key"}, "header:X-Api-Key"},
		{[]string{"cookie:Session"}, "cookie:Session"},
		{[]string{"query:filter[user]"}, "query:filter[user]"},
		{[]string{"query:a:b"}, "query:a:b"},
		{[]string{"path:id"}, "path:id"},
		{[]string{"path:{id}"}, "path:id"},
		{[]string{"path:{rest...}"}, "path:rest"},
		{[]string{"client-ip", "host", "route", "query:user"}, "client-ip, host, route, query:user"},
	} {
		if got := key(t, tt.words...).String(); got != tt.want {
			t.Errorf("%q: got %s, want %s", tt.words, got, tt.want)
		}
	}
	if got := (Key{}).String(); got != "global" {
		t.Errorf("the zero Key is %s", got)
	}
	if got, want := key(t, "client-ip", "path:id").Parts(), []Part{{Kind: ClientIP}, {Path, "id"}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestParseKeyErrors(t *testing.T) {
	for _, tt := range []struct{ words, want string }{
		{"", "needs at least one part"},
		{"client_ip", `did you mean "client-ip"?`},
		{"ClientIP", `did you mean "client-ip"?`},
		{"remote_addr", `did you mean "client-ip"?`},
		{"$binary_remote_addr", `did you mean "client-ip"?`},
		{"X-Forwarded-For", `did you mean "client-ip"?`},
		{"headers:X-Api-Key", `did you mean "header:X-Api-Key"?`},
		{"Header", `did you mean "header:NAME"?`},
		{"param:user", `did you mean "query:user"?`},
		{"hostname", `did you mean "host"?`},
		{"user", "write global, client-ip, client-cert, host, route, header:NAME, cookie:NAME, query:NAME, path:NAME or a list of these"},
		{" client-ip", `did you mean "client-ip"?`},
		{"global|host", "cannot stand in a list"},
		{"host|global", "cannot stand in a list"},
		{"host|host", `"host" stands twice`},
		{"header:x-a|header:X-A", `"header:X-A" stands twice`},
		{"host:example.com", `"host:example.com" takes no name; write "host"`},
		{"header:", `"header:" lacks a name; write "header:NAME"`},
		{"header:X Y", "not a header's name"},
		{"header:Host", `is the key "host"`},
		{"header:host", `is the key "host"`},
		{"header:X_Key", "not forwarded"},
		{"header:x-forwarded-for", `X-Forwarded-For can be forged by every client; write "client-ip", and set trusted_proxies`},
		{"header:X-Real-IP", "can be forged"},
		{"header:Forwarded", "can be forged"},
		{"cookie:a;b", "not a cookie's name"},
		{"query:a b", "a space, a comma or a control character"},
		{"query:a,b", "a space, a comma or a control character"},
		{"path:a-b", "not a wildcard's name"},
		{"path:{$}", "not a wildcard's name"},
		{"path:1", "not a wildcard's name"},
	} {
		words := strings.Split(tt.words, "|")
		if tt.words == "" {
			words = nil
		}
		if k, err := ParseKey(words); err == nil || !strings.Contains(err.Error(), tt.want) || k.String() != "global" {
			t.Errorf("%q: got %v, %v, want %s", tt.words, k, err, tt.want)
		}
	}
}

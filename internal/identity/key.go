package identity

import (
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strings"
	"unicode"
)

// A Kind says where one part of a key comes from.
type Kind string

// The kinds of a key's parts. The last four need a name.
const (
	ClientIP   Kind = "client-ip"   // the client's address, IPv6 by prefix
	ClientCert Kind = "client-cert" // whom the client's verified certificate is for
	Host       Kind = "host"        // the request's host, without port and trailing dot, in lower case
	Route      Kind = "route"       // the route's match
	Header     Kind = "header"      // a request header, the first of several lines
	Cookie     Kind = "cookie"      // the first cookie of that name, its value as it came
	Query      Kind = "query"       // the first query parameter of that name, decoded
	Path       Kind = "path"        // a wildcard of the route's pattern
)

const globalWord = "global"

func (k Kind) named() bool { return k == Header || k == Cookie || k == Query || k == Path }

// A Part is one of the things a key is made of.
type Part struct {
	Kind Kind
	Name string // of a header (in canonical form), cookie, parameter or wildcard
}

// MayLack reports whether there can be requests without a value of the part,
// which missing_key is for.
func (p Part) MayLack() bool { return p.Kind.named() || p.Kind == ClientCert }

// String is the part as it is written in the configuration.
func (p Part) String() string {
	if p.Kind.named() {
		return string(p.Kind) + ":" + p.Name
	}
	return string(p.Kind)
}

// A Key says what is counted separately. The zero Key is "global": everything
// is counted together.
type Key struct {
	parts []Part
}

// Parts lists what the key is made of; nothing if it is global. The slice must
// not be changed.
func (k Key) Parts() []Part { return k.parts }

// String is the key as it is written in the configuration, its parts separated
// by a comma and a space. Keys that mean the same have the same String.
func (k Key) String() string {
	if len(k.parts) == 0 {
		return globalWord
	}
	words := make([]string, len(k.parts))
	for i, p := range k.parts {
		words[i] = p.String()
	}
	return strings.Join(words, ", ")
}

// ParseKey reads the words of a key: global, client-ip, client-cert, host, route,
// header:NAME, cookie:NAME, query:NAME and path:NAME, of which all but global
// may stand together.
func ParseKey(words []string) (Key, error) {
	if len(words) == 0 {
		return Key{}, errors.New("a key needs at least one part; write \"global\" to count everything together")
	}
	var k Key
	for _, word := range words {
		if word == globalWord {
			if len(words) > 1 {
				return Key{}, errors.New("\"global\" counts everything together, so it cannot stand in a list; remove it or the other parts")
			}
			return Key{}, nil
		}
		p, err := parsePart(word)
		if err != nil {
			return Key{}, err
		}
		if slices.Contains(k.parts, p) {
			return Key{}, fmt.Errorf("%q stands twice; remove one", p)
		}
		k.parts = append(k.parts, p)
	}
	return k, nil
}

func parsePart(word string) (Part, error) {
	kindWord, name, hasName := strings.Cut(word, ":")
	kind := Kind(kindWord)
	switch kind {
	case ClientIP, ClientCert, Host, Route:
		if hasName {
			return Part{}, fmt.Errorf("%q takes no name; write %q", word, kindWord)
		}
		return Part{Kind: kind}, nil
	case Header, Cookie, Query, Path:
		if name == "" {
			return Part{}, fmt.Errorf("%q lacks a name; write %q", word, kindWord+":NAME")
		}
		return namedPart(kind, name)
	}
	meant, ok := aliases[strings.Map(letters, kindWord)]
	switch {
	case !ok:
		return Part{}, fmt.Errorf("%q is not a key; write global, client-ip, client-cert, host, route, header:NAME, cookie:NAME, query:NAME, path:NAME or a list of these", word)
	case meant.named() && hasName:
		return Part{}, fmt.Errorf("%q is not a key; did you mean %q?", word, string(meant)+":"+name)
	case meant.named():
		return Part{}, fmt.Errorf("%q is not a key; did you mean %q?", word, string(meant)+":NAME")
	}
	return Part{}, fmt.Errorf("%q is not a key; did you mean %q?", word, meant)
}

// namedPart checks a name. One that no request could carry would make every
// request lack its key.
func namedPart(kind Kind, name string) (Part, error) {
	switch kind {
	case Header:
		if !isToken(name) {
			return Part{}, fmt.Errorf("%q is not a header's name; write one such as \"header:X-Api-Key\"", name)
		}
		if strings.EqualFold(name, "Host") {
			return Part{}, errors.New("the Host header is the key \"host\"; write that")
		}
		if strings.Contains(name, "_") {
			return Part{}, fmt.Errorf("headers with _ in their names are not forwarded, so %q cannot be counted by; use a name with -", name)
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		// Every client can write these; client-ip knows whom to believe.
		if name == "X-Forwarded-For" || name == "X-Real-Ip" || name == "Forwarded" {
			return Part{}, fmt.Errorf("%s can be forged by every client; write \"client-ip\", and set trusted_proxies", name)
		}
	case Cookie:
		if !isToken(name) {
			return Part{}, fmt.Errorf("%q is not a cookie's name; write one such as \"cookie:session\"", name)
		}
	case Query:
		// The comma separates parts in Key.String.
		if strings.ContainsFunc(name, func(r rune) bool { return r == ',' || unicode.IsSpace(r) || unicode.IsControl(r) }) {
			return Part{}, fmt.Errorf("the parameter's name %q holds a space, a comma or a control character; write it decoded and without these", name)
		}
	case Path:
		if name = strings.TrimSuffix(strings.Trim(name, "{}"), "..."); !isIdentifier(name) {
			return Part{}, fmt.Errorf("%q is not a wildcard's name; write path:id for a pattern with {id}", name)
		}
	}
	return Part{Kind: kind, Name: name}, nil
}

// aliases are words that other programs use, without case and punctuation.
var aliases = map[string]Kind{
	"clientip": ClientIP, "client": ClientIP, "ip": ClientIP, "clientaddress": ClientIP, "clientaddr": ClientIP,
	"remoteaddr": ClientIP, "remoteip": ClientIP, "remotehost": ClientIP, "address": ClientIP, "addr": ClientIP, "sourceip": ClientIP,
	"binaryremoteaddr": ClientIP, "xforwardedfor": ClientIP,
	"clientcert": ClientCert, "clientcertificate": ClientCert, "certificate": ClientCert, "cert": ClientCert, "mtls": ClientCert,
	"sslclientsdn": ClientCert, "tlsclientsubject": ClientCert,
	"hostname": Host, "hosts": Host, "domain": Host, "host": Host,
	"routes": Route, "route": Route,
	"headers": Header, "header": Header, "http": Header,
	"cookies": Cookie, "cookie": Cookie,
	"queries": Query, "query": Query, "param": Query, "parameter": Query, "arg": Query, "args": Query,
	"path": Path, "pathvalue": Path, "wildcard": Path,
}

func letters(r rune) rune {
	if unicode.IsLetter(r) {
		return unicode.ToLower(r)
	}
	return -1
}

// isToken reports whether s is a token of RFC 9110, section 5.6.2.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return s != ""
}

func isIdentifier(s string) bool {
	for i, r := range s {
		if r != '_' && !unicode.IsLetter(r) && (i == 0 || !unicode.IsDigit(r)) {
			return false
		}
	}
	return s != ""
}

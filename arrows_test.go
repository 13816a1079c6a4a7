// Package shapeproxy holds no code, only what is tested about the whole module.
package shapeproxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/shapeproxy/shapeproxy"

// arrows says which packages of this module a package may import. They point
// one way only: what decides (limiter, queue, shaping) knows nothing of HTTP,
// of files or of who watches.
var arrows = map[string][]string{
	"cmd/shapeproxy": {
		"internal/assemble", "internal/admin", "internal/metrics", "internal/replay", "internal/nginxconf", "internal/tracing", "internal/autotls",
		"internal/config", "internal/edge", "proxy", "limiter",
	},
	"internal/assemble": {
		"internal/config", "internal/identity", "internal/quota", "internal/redisstore", "proxy", "shaping", "queue", "limiter",
	},
	"internal/replay": {
		"internal/assemble", "internal/config", "internal/identity", "internal/uplot", "proxy", "shaping", "queue", "limiter",
	},
	"internal/nginxconf":  {"limiter"},
	"internal/tracing":    {"proxy"},
	"internal/redisstore": {"shaping", "limiter", "internal/keyed"},
	"internal/metrics":    {"proxy", "shaping", "limiter"},
	"internal/admin":      {"internal/uplot", "proxy", "shaping", "limiter"},
	"internal/autotls":    {"internal/config", "internal/identity"},
	"internal/config":     {"limiter", "internal/identity"},
	"proxy":               {"limiter", "internal/h1"},
	"shaping":             {"limiter", "queue", "internal/keyed"},
	"limiter":             {"internal/keyed"},

	"queue":             nil,
	"internal/h1":       nil,
	"internal/keyed":    nil,
	"internal/uplot":    nil,
	"internal/identity": nil,
	"internal/edge":     nil,
	"internal/quota":    nil,

	// What only tests import.
	"limiter/limitertest":       {"limiter"},
	"internal/ledger":           {"limiter"},
	"internal/redistest":        {"internal/testdeps"},
	"internal/browsertest":      {"internal/testdeps"},
	"internal/testdeps":         nil,
	"internal/testdeps/missing": {"internal/testdeps"},
	"deploy":                    nil, // nothing but tests
}

// soleImporters are the modules that one package keeps to itself, so that a
// change of theirs is met in one place.
var soleImporters = map[string]string{
	"github.com/prometheus/":         "internal/metrics",
	"github.com/coreos/go-systemd":   "cmd/shapeproxy",
	"github.com/spf13/cobra":         "cmd/shapeproxy",
	"github.com/schollz/":            "cmd/shapeproxy",
	"charm.land/":                    "cmd/shapeproxy",
	"github.com/go-logfmt/":          "internal/replay",
	"go.opentelemetry.io/":           "internal/tracing",
	"github.com/tufanbarisyildirim/": "internal/nginxconf",
	"github.com/BurntSushi/toml":     "internal/config",
	"github.com/pelletier/go-toml":   "internal/config",
	"github.com/redis/rueidis":       "internal/redisstore",
	"github.com/caddyserver/":        "internal/autotls",
	"go.uber.org/zap":                "internal/autotls",
	"github.com/pires/":              "internal/edge",
}

// standardOnly are the packages that need nothing but the standard library.
var standardOnly = []string{"limiter", "queue", "shaping", "internal/keyed", "internal/identity"}

func TestImportArrows(t *testing.T) {
	for _, problem := range against(packages(t)) {
		t.Error(problem)
	}
}

// What against must not let through.
func TestArrowsAgainst(t *testing.T) {
	for _, pkg := range []goPackage{
		{module + "/limiter", []string{module + "/proxy"}},
		{module + "/shaping", []string{"golang.org/x/time/rate"}},
		{module + "/proxy", []string{"github.com/prometheus/client_golang/prometheus"}},
		{module + "/internal/util", nil},
	} {
		if len(against([]goPackage{pkg})) != 1 {
			t.Errorf("%s importing %v is let through", pkg.ImportPath, pkg.Imports)
		}
	}
	fine := goPackage{module + "/proxy", []string{"net/http", "golang.org/x/sys/unix", module + "/limiter"}}
	if problems := against([]goPackage{fine}); problems != nil {
		t.Errorf("%v", problems)
	}
}

// against names every import of pkgs that the arrows forbid.
func against(pkgs []goPackage) (problems []string) {
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, pkg := range pkgs {
		name := strings.TrimPrefix(pkg.ImportPath, module+"/")
		if free(name) {
			continue
		}
		allowed, known := arrows[name]
		if !known {
			problem("%s is not in the list of arrows; add it there with what it may import", name)
			continue
		}
		for _, path := range pkg.Imports {
			if own, ok := strings.CutPrefix(path, module+"/"); ok {
				if !slices.Contains(allowed, own) {
					problem("%s imports %s, against the arrows", name, own)
				}
				continue
			}
			for prefix, owner := range soleImporters {
				if strings.HasPrefix(path, prefix) && name != owner {
					problem("%s imports %s, which is for %s alone", name, path, owner)
				}
			}
			// Only paths outside the standard library begin with a domain name.
			first, _, _ := strings.Cut(path, "/")
			if strings.Contains(first, ".") && slices.Contains(standardOnly, name) {
				problem("%s imports %s; it needs nothing but the standard library", name, path)
			}
		}
	}
	return problems
}

// free reports whether the package may import whatever it measures or draws.
func free(name string) bool {
	return name == module || strings.HasPrefix(name, "bench") || strings.HasPrefix(name, "docs")
}

type goPackage struct {
	ImportPath string
	Imports    []string // without those of its tests
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var pkgs []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) < 2 {
		t.Fatalf("go list names %d packages", len(pkgs))
	}
	return pkgs
}

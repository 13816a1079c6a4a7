package shapeproxy

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityCases holds the table of docs/security.md to what is there: no
// kind of attack is left out, and what it names exists.
func TestSecurityCases(t *testing.T) {
	text, err := os.ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)
	for n, last := range map[int]int{1: 11, 16: 45} { // one row is for 12 to 15
		for ; n <= last; n++ {
			if !strings.Contains(doc, fmt.Sprintf("\n| S%d |", n)) && !regexp.MustCompile(fmt.Sprintf(`\n\| S\d+, S%[1]d \||\n\| S%[1]d, S\d+ \|`, n)).MatchString(doc) {
				t.Errorf("no row for S%d", n)
			}
		}
	}
	var there strings.Builder
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == "node_modules" || d.Name() == ".git":
			return fs.SkipDir
		case strings.HasSuffix(path, ".vtc"):
			there.WriteString(d.Name() + "\n")
		case strings.HasSuffix(path, "_test.go"):
			code, err := os.ReadFile(path)
			there.Write(code)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+|[a-z0-9]+\\.vtc)`").FindAllStringSubmatch(doc, -1) {
		what := name[1]
		if !strings.HasSuffix(what, ".vtc") {
			what = "func " + what + "("
		}
		if !strings.Contains(there.String(), what) {
			t.Errorf("%s is named, and is not there", name[1])
		}
	}
}

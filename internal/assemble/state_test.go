package assemble

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

const quotas = head + `limits = ["fixed", "tokens", "leaky", "log", "counter", "q"]
[limit.fixed]
algorithm = "fixed-window"
limit = 10
window = "1d"
key = "header:X-A"
[limit.tokens]
algorithm = "token-bucket"
rate = "10/d"
burst = 10
[limit.leaky]
algorithm = "leaky-bucket"
rate = "10/d"
burst = 10
[limit.log]
algorithm = "sliding-window-log"
limit = 10
window = "1d"
[limit.counter]
algorithm = "sliding-window-counter"
limit = 10
window = "1d"
[limit.q]
algorithm = "leaky-bucket"
rate = "1/s"
queue = 5
`

var quotaNames = []string{"fixed", "tokens", "leaky", "log", "counter"}

// boot is a System that has read the file, and what it said about it.
func boot(t *testing.T, file, text string) (*System, error) {
	t.Helper()
	s := newSystem(t)
	refused := s.KeepState(file)
	s.mustApply(t, text)
	if err := s.Restore(); err != nil {
		t.Fatal(err)
	}
	return s, refused
}

func (s *System) used(name string) int64 {
	d := s.now.Load().limit(name).link.Reject.Peek("secret key", 1)
	return d.Limit - d.Remaining
}

func (s *System) use(t *testing.T, n int64) {
	t.Helper()
	for _, name := range quotaNames {
		if d := s.now.Load().limit(name).link.Reject.Take("secret key", n); !d.Allowed {
			t.Fatalf("%s: %+v", name, d)
		}
	}
}

func (s *System) mustSave(t *testing.T) {
	t.Helper()
	if err := s.Save(); err != nil {
		t.Fatal(err)
	}
}

// TestCase64StateSurvives: every algorithm goes on with what was used, twice,
// and a limit that is another one now starts unused (libops/captcha-protect #13).
func TestCase64StateSurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "state")
		s, refused := boot(t, file, quotas)
		if refused != nil {
			t.Fatal(refused)
		}
		s.use(t, 4)
		s.mustSave(t)
		s, _ = boot(t, file, quotas)
		s.use(t, 3)
		s.mustSave(t)
		s.mustSave(t)

		changed := strings.Replace(quotas, "header:X-A", "header:X-B", 1)                                                                     // another key
		changed = strings.Replace(changed, "[limit.log]\nalgorithm = \"sliding-window-log\"", "[limit.log]\nalgorithm = \"fixed-window\"", 1) // another algorithm
		changed = strings.Replace(changed, "limit.leaky", "limit.other", 1)
		changed = strings.Replace(changed, `"leaky"`, `"other"`, 1)
		changed = strings.Replace(changed, "burst = 10", "burst = 20", 1) // another number
		s, _ = boot(t, file, changed)
		for name, want := range map[string]int64{"fixed": 0, "log": 0, "other": 0, "tokens": 7, "counter": 7} {
			if got := s.used(name); got != want {
				t.Errorf("%s: %d used, want %d", name, got, want)
			}
		}

		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte("secret key")) {
			t.Error("the file tells a key")
		}
		if info, _ := os.Stat(file); info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v", info.Mode())
		}
		if left, _ := filepath.Glob(file + "?*"); left != nil {
			t.Errorf("left behind: %v", left)
		}
		// On the day after the next, nothing of it counts.
		time.Sleep(48 * time.Hour)
		s, _ = boot(t, file, quotas)
		for _, name := range quotaNames {
			if got := s.used(name); got != 0 {
				t.Errorf("%s: %d used two days later", name, got)
			}
		}
	})
}

// TestStateRefused: a file that is torn, foreign or of another version is put
// aside as it is, and all else goes on, keeping new state.
func TestStateRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "state")
		s, _ := boot(t, file, quotas)
		s.use(t, 4)
		s.mustSave(t)
		whole, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		flipped := bytes.Clone(whole)
		flipped[len(whole)/2] ^= 1
		version := bytes.Replace(whole, []byte("state 1\n"), []byte("state 0\n"), 1)
		tests := map[string]struct {
			data []byte
			want string
		}{
			"empty":         {nil, "is not a state file"},
			"foreign":       {[]byte("root:x:0:0:root:/root:/bin/sh\nand much more of that kind of text\n"), "is not a state file"},
			"other version": {version, "another version"},
			"a bit flipped": {flipped, "is torn"},
			"longer":        {append(bytes.Clone(whole), 0), "is torn"},
		}
		for n := 1; n < len(whole); n += 7 {
			want := "is torn"
			if n < len(stateVersion) {
				want = "is not a state file"
			}
			tests[fmt.Sprint("cut to ", n)] = struct {
				data []byte
				want string
			}{whole[:n], want}
		}
		for name, tt := range tests {
			if err := os.WriteFile(file, tt.data, 0o644); err != nil {
				t.Fatal(err)
			}
			s, refused := boot(t, file, quotas)
			if refused == nil || !strings.Contains(refused.Error(), tt.want) || !strings.Contains(refused.Error(), ".refused") {
				t.Errorf("%s: %v, want %q", name, refused, tt.want)
			}
			if aside, err := os.ReadFile(file + ".refused"); err != nil || !bytes.Equal(aside, tt.data) {
				t.Errorf("%s: not put aside as it was: %v", name, err)
			}
			if got := s.used("fixed"); got != 0 {
				t.Errorf("%s: %d used", name, got)
			}
			s.use(t, 2)
			s.mustSave(t)
			if s, refused = boot(t, file, quotas); refused != nil || s.used("fixed") != 2 {
				t.Errorf("%s: the next start: %v, %d used", name, refused, s.used("fixed"))
			}
		}
	})
}

// TestStateOfACheat: a file with a right sum and wrong contents is restored as
// far as it can be read, and never panics.
func TestStateOfACheat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "state")
		s, _ := boot(t, file, quotas)
		s.use(t, 4)
		s.mustSave(t)
		whole, _ := os.ReadFile(file)
		body := whole[:len(whole)-sha256.Size]
		for i := stateHead; i < len(body); i += 3 {
			for _, b := range []byte{1, 0xff} {
				data := bytes.Clone(body)
				data[i] = b
				sum := sha256.Sum256(data)
				if err := os.WriteFile(file, append(data, sum[:]...), 0o600); err != nil {
					t.Fatal(err)
				}
				s := newSystem(t)
				if err := s.KeepState(file); err != nil {
					t.Fatal(err)
				}
				s.mustApply(t, quotas)
				_ = s.Restore()
				for _, name := range quotaNames {
					if got := s.used(name); got < 0 || got > 10 {
						t.Fatalf("byte %d = %#x: %s: %d used", i, b, name, got)
					}
				}
			}
		}
	})
}

// A folder is not moved out of the way, nor written over.
func TestStateInAFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder := t.TempDir()
		s, refused := boot(t, folder, quotas)
		if refused == nil || !strings.Contains(refused.Error(), "is not a regular file") {
			t.Errorf("%v", refused)
		}
		s.use(t, 4)
		s.mustSave(t)
		if info, err := os.Stat(folder); err != nil || !info.IsDir() {
			t.Errorf("%v, %v", info, err)
		}
	})
}

// Who cannot write keeps what was written before, and says so.
func TestStateThatCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "state")
		s, _ := boot(t, file, quotas)
		s.use(t, 4)
		s.mustSave(t)
		if err := os.MkdirAll(filepath.Join(file+".new", "in the way"), 0o700); err != nil {
			t.Fatal(err)
		}
		s.use(t, 1)
		if err := s.Save(); err == nil {
			t.Error("no error")
		}
		if s, refused := boot(t, file, quotas); refused != nil || s.used("fixed") != 4 {
			t.Errorf("%v, %d used", refused, s.used("fixed"))
		}
	})
}

// A System without a state file saves nothing, and nothing is wrong with that.
func TestNoState(t *testing.T) {
	s := newSystem(t)
	s.mustApply(t, quotas)
	if err := s.Restore(); err != nil {
		t.Error(err)
	}
	if err := s.Save(); err != nil {
		t.Error(err)
	}
	if s.store.Seed() != (limiter.NewMemory()).Seed() {
		t.Error("keys are hashed under a seed that is not needed")
	}
}

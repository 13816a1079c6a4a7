package assemble

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// The file begins with the version, of which there is one, and the seed that
// keys are hashed with. Then come the limits, each with its name and key in
// front of what limiter.Limit.Save writes, and an end without a name. The SHA-256
// of all that is the last.
const (
	stateKind    = "shapeproxy state "
	stateVersion = stateKind + "1\n"
	stateHead    = len(stateVersion) + 16
)

// MaxState bounds the file, in bytes.
const MaxState = 1 << 30

// A stateFile is where the budgets of limits without a queue are kept through a
// restart. The zero one keeps nothing.
type stateFile struct {
	path string
	held bool // what the file holds has been checked and is still to be restored

	mu sync.Mutex // held while the file is written
}

// KeepState has the budgets of limits without a queue be restored from that file
// by Restore, and written there by Save. It must be called before the first
// Apply. A file that cannot be used is the error, a warning only: it is put aside
// under another name, and everything starts unused.
func (s *System) KeepState(path string) error {
	s.state.path = path
	seed, err := checkState(path)
	switch {
	case err == nil:
		s.state.held = true
	case errors.Is(err, os.ErrNotExist):
		err = nil
		_, _ = rand.Read(seed[:]) // never fails
	case errors.Is(err, errNoFile):
		_, _ = rand.Read(seed[:])
		s.state.path = "" // nor is a folder to be moved, with all that is in it
		err = fmt.Errorf("%s %w; name a file, as quotas do not survive the next restart", path, err)
	default:
		_, _ = rand.Read(seed[:])
		aside := path + ".refused"
		if renamed := os.Rename(path, aside); renamed != nil {
			s.state.path = "" // what it is must not be written over
			err = fmt.Errorf("%s %w; it cannot be moved out of the way (%v), so quotas do not survive the next restart", path, err, renamed)
		} else {
			err = fmt.Errorf("%s %w; it was renamed to %s, and all quotas start unused", path, err, aside)
		}
	}
	s.store.Portable(seed)
	return err
}

// checkState reads the whole file, so that a torn one is noticed before any of
// it is believed, and returns its seed.
func checkState(path string) (seed [16]byte, err error) {
	info, err := os.Stat(path) // before it is opened, as a pipe would hold that up
	if err != nil {
		return seed, unreadable(err)
	}
	if !info.Mode().IsRegular() {
		return seed, errNoFile
	}
	f, err := os.Open(path)
	if err != nil {
		return seed, unreadable(err)
	}
	defer f.Close()
	switch {
	case info.Size() > MaxState:
		return seed, errors.New("is larger than any state file")
	}
	head := make([]byte, stateHead)
	n, _ := io.ReadFull(f, head)
	switch {
	case n < len(stateVersion) || !strings.HasPrefix(string(head), stateKind):
		return seed, errors.New("is not a state file")
	case !strings.HasPrefix(string(head), stateVersion):
		return seed, errors.New("is a state file of another version")
	case info.Size() < int64(stateHead+sha256.Size):
		return seed, errTorn
	}
	sum := sha256.New()
	sum.Write(head)
	var want [sha256.Size]byte
	if _, err := io.CopyN(sum, f, info.Size()-int64(stateHead+sha256.Size)); err != nil {
		return seed, err
	}
	if _, err := io.ReadFull(f, want[:]); err != nil {
		return seed, err
	}
	if [sha256.Size]byte(sum.Sum(nil)) != want {
		return seed, errTorn
	}
	return [16]byte(head[len(stateVersion):]), nil
}

var (
	errTorn   = errors.New("is torn or was changed by somebody else")
	errNoFile = errors.New("is not a regular file")
)

// unreadable is err without the path, which is told already.
func unreadable(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return fmt.Errorf("cannot be read: %w", err)
}

// Restore gives limits what they had used when the file was written, where name,
// algorithm and key are still the same; once, right after the first Apply. Time
// has gone on since, by the wall clock. What does not fit starts unused.
func (s *System) Restore() error {
	if !s.state.held {
		return nil
	}
	s.state.held = false
	f, err := os.Open(s.state.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(int64(stateHead), io.SeekStart); err != nil {
		return err
	}
	r := bufio.NewReader(f)
	g := s.now.Load()
	for {
		name, err := readText(r)
		if err != nil || name == "" {
			return err
		}
		key, err := readText(r)
		if err != nil {
			return err
		}
		algorithm, err := readText(r)
		if err != nil {
			return err
		}
		l := g.limit(name)
		if l != nil && l.link.Reject != nil && l.conf.Key.String() == key && string(l.conf.Algorithm) == algorithm {
			err = l.link.Reject.Load(r)
		} else {
			err = limiter.SkipSaved(r)
		}
		if err != nil {
			return fmt.Errorf("%s: limit %s: %w", s.state.path, name, err)
		}
	}
}

// Save writes what limits without a queue have used, so that there is a whole
// file at every instant: the one before, or this one.
func (s *System) Save() error {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	if s.state.path == "" {
		return nil
	}
	// By a name of its own that a killed process leaves behind at most once.
	// What is there must not be followed elsewhere.
	temp := s.state.path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = s.writeState(f)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(temp, s.state.path)
	}
	if err != nil {
		_ = os.Remove(temp)
		return err
	}
	// The new name must be on the disk, too.
	dir, err := os.Open(filepath.Dir(s.state.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

func (s *System) writeState(f io.Writer) error {
	sum := &summing{w: f, sum: sha256.New()}
	w := bufio.NewWriterSize(sum, 64<<10)
	seed := s.store.Seed()
	_, _ = w.WriteString(stateVersion)
	_, _ = w.Write(seed[:])
	for _, l := range s.now.Load().limits {
		if l.link.Reject == nil {
			continue
		}
		writeText(w, l.conf.Name)
		writeText(w, l.conf.Key.String())
		writeText(w, string(l.conf.Algorithm))
		if err := l.link.Reject.Save(w); err != nil {
			return err
		}
	}
	writeText(w, "")
	if err := w.Flush(); err != nil { // and every error before
		return err
	}
	_, err := f.Write(sum.sum.Sum(nil))
	return err
}

// summing is a writer that sums up, and ends before the file gets too large.
type summing struct {
	w   io.Writer
	sum hash.Hash
	n   int
}

func (s *summing) Write(b []byte) (int, error) {
	if s.n += len(b); s.n > MaxState-sha256.Size {
		return 0, errors.New("there is more to keep than 1 GiB; lower max_keys, or the limit of sliding-window-log")
	}
	s.sum.Write(b)
	return s.w.Write(b)
}

func writeText(w *bufio.Writer, s string) {
	var b [binary.MaxVarintLen64]byte
	_, _ = w.Write(b[:binary.PutUvarint(b[:], uint64(len(s)))])
	_, _ = w.WriteString(s)
}

func readText(r *bufio.Reader) (string, error) {
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return "", err
	}
	if n > 1<<20 {
		return "", errTorn
	}
	b := make([]byte, n)
	_, err = io.ReadFull(r, b)
	return string(b), err
}

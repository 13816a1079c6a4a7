package autotls

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/config"
)

// A watch is a Source that looks at files in a bubble's time.
type watch struct {
	t    *testing.T
	s    *Source
	log  *journal
	told int // warnings so far
}

func newWatch(t *testing.T, c config.TLS) *watch {
	w := &watch{t: t, log: new(journal)}
	w.s = newSource(t, c, w.log.logger(slog.LevelInfo))
	w.s.Start(nil, nil)
	time.Sleep(time.Second) // changes come between two looks
	return w
}

// shows says that the Source shows a certificate for that subject once two looks
// have passed, and not sooner, and how many warnings have come meanwhile.
func (w *watch) shows(subject string, warnings int) {
	w.t.Helper()
	before := w.subject()
	time.Sleep(watchEvery)
	synctest.Wait()
	if got := w.subject(); got != before {
		w.t.Errorf("%s is shown after one look", got)
	}
	time.Sleep(watchEvery)
	synctest.Wait()
	if got := w.subject(); got != subject {
		w.t.Errorf("%s is shown, want %s\n%s", got, subject, w.log)
	}
	now := strings.Count(w.log.String(), "level=WARN")
	if now != w.told+warnings {
		w.t.Errorf("%d warnings, want %d\n%s", now-w.told, warnings, w.log)
	}
	w.told = now
}

func (w *watch) subject() string {
	return w.s.now.Load().tls.Certificates[0].Leaf.Subject.CommonName
}

func TestFilesAreWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, dir := newAuthority(t, "ca"), t.TempDir()
		pair := a.stored(dir, "one", "a.test")
		w := newWatch(t, config.TLS{Certificates: []config.Certificate{pair}})
		defer w.s.Close()
		w.shows("one", 0)

		// In place, the key some time after the certificate.
		cert, key := a.pair("two", "a.test")
		write(t, pair.Cert, cert)
		w.shows("one", 1) // they do not fit
		w.shows("one", 0) // which is told once
		write(t, pair.Key, key)
		w.shows("two", 0)

		// Renamed over, both between two looks.
		three := a.stored(dir, "three", "a.test")
		for from, to := range map[string]string{three.Cert: pair.Cert, three.Key: pair.Key} {
			if err := os.Rename(from, to); err != nil {
				t.Fatal(err)
			}
		}
		w.shows("three", 0)

		write(t, pair.Cert, []byte("no PEM"))
		w.shows("three", 1)
		if err := os.Remove(pair.Cert); err != nil {
			t.Fatal(err)
		}
		w.shows("three", 1)
		w.shows("three", 0)
		write(t, pair.Cert, cert)
		write(t, pair.Key, key)
		w.shows("two", 0)
	})
}

// Kubernetes swaps a link to a folder of links; Certbot swaps a link to each file.
func TestLinksAreWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, dir := newAuthority(t, "ca"), t.TempDir()
		for _, subject := range []string{"one", "two"} {
			folder := filepath.Join(dir, "..."+subject)
			if err := os.Mkdir(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			cert, key := a.pair(subject, "a.test")
			write(t, filepath.Join(folder, "tls.crt"), cert)
			write(t, filepath.Join(folder, "tls.key"), key)
		}
		link := func(to, from string) {
			t.Helper()
			if err := os.Symlink(to, from+".new"); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(from+".new", from); err != nil {
				t.Fatal(err)
			}
		}
		data := filepath.Join(dir, "..data")
		link("...one", data)
		pair := config.Certificate{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
		link("..data/tls.crt", pair.Cert)
		link("..data/tls.key", pair.Key)
		w := newWatch(t, config.TLS{Certificates: []config.Certificate{pair}})
		defer w.s.Close()
		link("...two", data)
		w.shows("two", 0)
	})
}

// One pair that is broken does not hold back another, nor client_ca.
func TestFilesAreWatchedOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, dir := newAuthority(t, "ca"), t.TempDir()
		first, second := a.stored(dir, "first", "a.test"), a.stored(dir, "second", "b.test")
		ca := filepath.Join(dir, "ca.pem")
		write(t, ca, a.pem())
		w := newWatch(t, config.TLS{Certificates: []config.Certificate{first, second}, ClientCA: ca, ClientAuth: "require"})
		defer w.s.Close()

		cert, key := a.pair("new", "b.test")
		write(t, second.Cert, cert)
		write(t, second.Key, key)
		write(t, first.Key, []byte("no PEM"))
		write(t, ca, append(a.pem(), newAuthority(t, "another").pem()...))
		w.shows("first", 1)
		now := w.s.now.Load()
		if got := now.tls.Certificates[1].Leaf.Subject.CommonName; got != "new" || len(now.roots) != 2 {
			t.Errorf("%s is shown, and clients' certificates are from %d", got, len(now.roots))
		}
		write(t, ca, nil)
		w.shows("first", 1)
		if len(w.s.now.Load().roots) != 2 {
			t.Error("an empty client_ca counts")
		}
	})
}

// What would fill the memory is not read to its end.
func TestFilesAreBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "large")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(1 << 40); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := New(config.TLS{Certificates: []config.Certificate{{Cert: file, Key: file}}}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "larger than 1 MiB") {
		t.Error(err)
	}
}

package testdeps

import (
	"runtime"
	"testing"
)

// outcome is a testing.TB that notes whether a test would have been skipped or
// have failed.
type outcome struct {
	testing.TB
	skipped, failed bool
}

func (o *outcome) Helper()      {}
func (o *outcome) Skip(...any)  { o.skipped = true; runtime.Goexit() }
func (o *outcome) Fatal(...any) { o.failed = true; runtime.Goexit() }

func ask(t *testing.T, name string) (o outcome, path string) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		path = Need(&o, name)
	}()
	<-done
	return o, path
}

func TestNeed(t *testing.T) {
	t.Setenv("SHAPEPROXY_NO_SKIP", "")
	if o, path := ask(t, "go"); o.skipped || o.failed || path == "" {
		t.Errorf("go, which runs this test: %+v, path %q", o, path)
	}
	if o, _ := ask(t, "no-such-server"); !o.skipped || o.failed {
		t.Errorf("a missing program: %+v, want a skip", o)
	}
	t.Setenv("SHAPEPROXY_NO_SKIP", "1")
	if o, _ := ask(t, "no-such-server"); !o.failed || o.skipped {
		t.Errorf("a missing program where none may be: %+v, want a failure", o)
	}
}

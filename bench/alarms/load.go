//go:build linux

package main

import (
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
)

// A load is what else goes on while alarms are measured.
type load struct {
	name    string
	outside func() (end func(), err error) // in processes of its own
	inside  func() (end func())            // in the measured process
}

func (l load) String() string { return l.name }

var loads = []load{
	{"idle", nothing, func() func() { return func() {} }},
	{"others", spinners, func() func() { return func() {} }},
	{"goroutines", nothing, spin},
	{"traffic", nothing, exchange},
}

func nothing() (func(), error) { return func() {}, nil }

// spinners keeps each processor busy with another process.
func spinners() (func(), error) {
	var all []*exec.Cmd
	end := func() {
		for _, c := range all {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	}
	for range runtime.NumCPU() {
		c := exec.Command("sh", "-c", "while :; do :; done")
		c.Stderr = os.Stderr
		if err := c.Start(); err != nil {
			end()
			return nil, err
		}
		all = append(all, c)
	}
	return end, nil
}

// spin keeps each processor busy with a goroutine that gives way only when the
// runtime takes the processor from it.
func spin() func() {
	var over atomic.Bool
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for !over.Load() {
			}
		})
	}
	return func() { over.Store(true); all.Wait() }
}

// exchange keeps the processors busy as a proxy does: 64 connections over
// loopback, both ends here, each sending small messages to and fro.
func exchange() func() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	var all sync.WaitGroup
	var conns []net.Conn
	for range 64 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			panic(err)
		}
		s, err := l.Accept()
		if err != nil {
			panic(err)
		}
		conns = append(conns, c, s)
		all.Go(func() { _, _ = io.Copy(struct{ io.Writer }{s}, struct{ io.Reader }{s}) })
		all.Go(func() {
			message := make([]byte, 512)
			for {
				if _, err := c.Write(message); err != nil {
					return
				}
				if _, err := io.ReadFull(c, message); err != nil {
					return
				}
			}
		})
	}
	return func() {
		for _, c := range conns {
			c.Close()
		}
		l.Close()
		all.Wait()
	}
}

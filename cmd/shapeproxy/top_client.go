package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// A topClient asks the API of an admin listener.
type topClient struct {
	Admin string // as the user named it
	base  *url.URL
	token string
	http  *http.Client
}

func newTopClient(admin, tokenFile string) (*topClient, error) {
	transport := &http.Transport{ResponseHeaderTimeout: 10 * time.Second}
	c := &topClient{Admin: admin, http: &http.Client{
		Transport: transport,
		// Nobody else is to be given the token.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if path, ok := strings.CutPrefix(admin, "unix:"); ok {
		c.base = &url.URL{Scheme: "http", Host: "localhost"}
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	} else {
		u, err := url.Parse(admin)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
			return nil, fmt.Errorf("--admin is %q; write an address such as http://127.0.0.1:9090 or unix:/run/admin.sock, and the token into --token-file", admin)
		}
		c.base = &url.URL{Scheme: u.Scheme, Host: u.Host}
	}
	if tokenFile != "" {
		text, err := os.ReadFile(tokenFile)
		if err != nil {
			return nil, fmt.Errorf("--token-file: %w", err)
		}
		if c.token = strings.TrimSpace(string(text)); c.token == "" {
			return nil, fmt.Errorf("--token-file: %s is empty", tokenFile)
		}
	}
	return c, nil
}

// A topSnapshot is what is shown of one event of /api/events.
type topSnapshot struct {
	Ready     bool          `json:"ready"`
	Limits    []topLimit    `json:"limits"`
	Upstreams []topUpstream `json:"upstreams"`
}

type topLimit struct {
	Name       string  `json:"name"`
	Key        any     `json:"key"`
	Queue      int     `json:"queue"`
	Depth      int     `json:"depth"`
	OldestWait float64 `json:"oldest_wait_seconds"`
	DryRun     bool    `json:"dry_run"`
	Paused     string  `json:"paused"`
	Resumes    float64 `json:"resumes_in_seconds"`
	Waits      *struct {
		P50 float64 `json:"p50"`
		P99 float64 `json:"p99"`
	} `json:"wait_seconds"`
	Samples []struct { // the last one is that of now
		In       float64 `json:"in"`
		Out      float64 `json:"out"`
		Rejected float64 `json:"rejected"`
	} `json:"samples"`
}

type topUpstream struct {
	Name      string `json:"name"`
	InFlight  int64  `json:"in_flight"`
	Breaker   string `json:"breaker"`
	Addresses []struct {
		Healthy bool `json:"healthy"`
	} `json:"addresses"`
}

const (
	// An event is due each second; after so long without one the connection is dead.
	topSilence = 5 * time.Second
	// mostEvent bounds one event: some ten thousand limits with the samples of a minute.
	mostEvent = 64 << 20
)

// events calls f for every event, until that returns an error, which it returns, or
// the connection ends, which is one too.
func (c *topClient) events(ctx context.Context, f func(topSnapshot) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(topSilence, func() { cancel(fmt.Errorf("%s has been silent for %s", c.Admin, topSilence)) })
	defer silence.Stop()
	res, err := c.call(ctx, http.MethodGet, "/api/events", "")
	if err != nil {
		return endOf(ctx, err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, mostEvent)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		silence.Reset(topSilence)
		var s topSnapshot
		if err := json.Unmarshal(data, &s); err != nil {
			return fmt.Errorf("%s does not answer as shapeproxy's admin listener does: %w", c.Admin, err)
		}
		if err := f(s); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return endOf(ctx, err)
	}
	return fmt.Errorf("%s has ended the connection", c.Admin)
}

// endOf is why ctx ended if it has, or else err.
func endOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// pause stops the queue of a limit until it is resumed, and resume lets it go on.
func (c *topClient) pause(ctx context.Context, limit string) error {
	return c.steer(ctx, limit, "pause", "{}")
}

func (c *topClient) resume(ctx context.Context, limit string) error {
	return c.steer(ctx, limit, "resume", "")
}

func (c *topClient) steer(ctx context.Context, limit, what, body string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	res, err := c.call(ctx, http.MethodPost, "/api/limits/"+limit+"/"+what, body)
	if err == nil {
		_ = res.Body.Close()
	}
	return err
}

// call returns an answer of 200, whose body is to be closed, or why there is none.
func (c *topClient) call(ctx context.Context, method, path, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base.JoinPath(path).String(), strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.Do(r)
	if err != nil {
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err // without the address, which is said once
		}
		return nil, fmt.Errorf("no shapeproxy answers at %s (%w); is it running, and is this its [admin] listen?", c.Admin, err)
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	var refused struct {
		Error string `json:"error"`
	}
	text, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	switch _ = json.Unmarshal(text, &refused); {
	case res.StatusCode == http.StatusUnauthorized:
		return nil, fmt.Errorf("%s asks for another token; name its file with --token-file", c.Admin)
	case refused.Error != "":
		return nil, errors.New(refused.Error)
	}
	return nil, fmt.Errorf("%s answers %s, not as shapeproxy's admin listener does", c.Admin, res.Status)
}

package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A problem is the body of an answer that shapeproxy itself makes (RFC 9457).
type problem struct {
	Type     string         `json:"type"`
	Title    string         `json:"title"`
	Status   int            `json:"status"`
	Detail   string         `json:"detail,omitempty"`
	Violated []string       `json:"violated-policies,omitempty"`
	Reason   limiter.Reason `json:"reason,omitempty"`
}

// quotaExceeded is the problem type of a refusal, registered by
// draft-ietf-httpapi-ratelimit-headers.
const quotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"

// fail answers with an error of the proxy itself. kind is an error of the
// Proxy-Status registry.
func (x *exchange) fail(status int, kind, detail string) {
	x.event.Error = kind
	x.w.Header().Set("Proxy-Status", proxyStatus(kind, ""))
	x.write(problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}, grpcStatus(status))
}

// unavailable answers for an upstream that takes no requests now.
func (x *exchange) unavailable(e *unavailableError) {
	x.route.Upstream.countRefusal(e.reason)
	x.event.Error, x.event.Reason = "destination_unavailable", e.reason
	h := x.w.Header()
	h.Set("Proxy-Status", proxyStatus("destination_unavailable", strings.ReplaceAll(string(e.reason), "_", " ")))
	detail := e.Error()
	if e.retryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(Seconds(e.retryAfter), 10))
		detail = fmt.Sprintf("%s; try again in %d s", detail, Seconds(e.retryAfter))
	}
	status := http.StatusServiceUnavailable
	x.write(problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail, Reason: e.reason,
	}, grpcStatus(status))
}

// refuse answers for the limit that said no.
func (x *exchange) refuse(p limiter.Permit) {
	x.event.Reason, x.event.Policy = p.Reason, p.Policy
	h := x.w.Header()
	h.Set("Proxy-Status", proxyStatus("http_request_denied", strings.ReplaceAll(string(p.Reason), "_", " ")))
	x.write(refusal(h, p))
}

// refusal is the body and the gRPC code for a refused request. It puts
// Retry-After into h.
func refusal(h http.Header, p limiter.Permit) (body problem, code string) {
	status := p.Status
	if status == 0 {
		status = http.StatusTooManyRequests
	}
	quota := p.Reason != limiter.ReasonMissingKey
	if quota && p.RetryAfter != limiter.Never {
		h.Set("Retry-After", strconv.FormatInt(Seconds(p.RetryAfter), 10))
	}
	body = problem{
		Type: quotaExceeded, Title: "Quota exceeded", Status: status,
		Detail: refusalDetail(p.Decision), Reason: p.Reason,
	}
	if !quota {
		body.Type, body.Title = "about:blank", http.StatusText(status)
	}
	for _, d := range p.All {
		if !d.Allowed && !d.DryRun && !d.Peeked {
			body.Violated = append(body.Violated, d.Policy)
		}
	}
	code = grpcStatus(status)
	if quota && status != http.StatusServiceUnavailable {
		code = grpcResourceExhausted // whatever status its owner chose
	}
	return body, code
}

func refusalDetail(d limiter.Decision) string {
	var why string
	switch d.Reason {
	case limiter.ReasonLimit:
		why = fmt.Sprintf("the limit %s has nothing left", d.Policy)
		if d.Remaining > 0 {
			why = fmt.Sprintf("the limit %s has less left than the request costs", d.Policy)
		}
	case limiter.ReasonQueueFull:
		why = fmt.Sprintf("every place in the queue of %s is taken", d.Policy)
	case limiter.ReasonMaxWait:
		if d.OwnDeadline {
			why = fmt.Sprintf("the wait in the queue of %s would be longer than the request itself allows", d.Policy)
			break
		}
		why = fmt.Sprintf("the wait in the queue of %s would be longer than it allows", d.Policy)
	case limiter.ReasonMissingKey:
		return fmt.Sprintf("the request lacks what the limit %s counts by", d.Policy)
	case limiter.ReasonPaused:
		why = fmt.Sprintf("what the limit %s leads to takes no requests for now, or fewer", d.Policy)
	case limiter.ReasonStoreDown:
		why = fmt.Sprintf("what counts for the limit %s does not answer", d.Policy)
	case limiter.ReasonShutdown:
		why = "the proxy is stopping"
	default:
		why = "the request was refused"
	}
	if d.RetryAfter == limiter.Never && d.Reason == limiter.ReasonLimit {
		why = fmt.Sprintf("the request costs more than the limit %s ever lets through", d.Policy)
	}
	if d.RetryAfter == limiter.Never {
		return why + "; this request can never be let through"
	}
	return fmt.Sprintf("%s; try again in %d s", why, Seconds(d.RetryAfter))
}

func (x *exchange) write(p problem, grpcCode string) {
	x.dropBody()
	p.write(&x.w, x.r, grpcCode)
}

// write sends p, as a gRPC status to a gRPC client.
func (p problem) write(w http.ResponseWriter, r *http.Request, grpcCode string) {
	h := w.Header()
	if isGRPC(r) {
		// A response of trailers only: the status stands in the header
		// (gRPC over HTTP/2, "Responses").
		h.Set("Content-Type", "application/grpc")
		h.Set("Grpc-Status", grpcCode)
		h.Set("Grpc-Message", grpcMessage(p.Title+": "+p.Detail))
		w.WriteHeader(http.StatusOK)
		return
	}
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	body = append(body, '\n')
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // a client that has gone is noted by Write
	}
}

// dropBody reads the body of a request that was not forwarded, if it is small
// and came together with the head, so that a client that is refused can keep
// its connection. It does not wait: the deadline is in the past.
func (x *exchange) dropBody() {
	n := x.r.ContentLength
	if x.body == nil || n < 0 || n > keptBytes || x.event.Upstream != "" || x.r.ProtoMajor != 1 || x.r.Header.Get("Expect") != "" {
		return
	}
	conn := http.NewResponseController(x.w.ResponseWriter)
	if conn.SetReadDeadline(time.Unix(1, 0)) == nil {
		_, _ = io.CopyN(io.Discard, x.body, n)
		_ = conn.SetReadDeadline(time.Time{})
	}
}

func isGRPC(r *http.Request) bool {
	rest, ok := strings.CutPrefix(r.Header.Get("Content-Type"), "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

const grpcResourceExhausted = "8"

// grpcStatus is the gRPC code for an HTTP status of ours, after gRPC's "HTTP
// to gRPC Status Code Mapping".
func grpcStatus(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "13" // INTERNAL
	case http.StatusTooManyRequests, http.StatusRequestEntityTooLarge:
		return grpcResourceExhausted
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return "12" // UNIMPLEMENTED
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return "14" // UNAVAILABLE
	case http.StatusInternalServerError:
		return "13"
	}
	return "2" // UNKNOWN
}

// grpcMessage percent-encodes what a header field cannot hold.
func grpcMessage(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

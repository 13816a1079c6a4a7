package conformance

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// grpcServer serves the interoperability suite's service with grpc-go and
// returns its URL.
func grpcServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	pb.RegisterTestServiceServer(s, interop.NewTestServer())
	go s.Serve(l)
	t.Cleanup(s.Stop)
	return "h2c://" + l.Addr().String()
}

// grpcClient is a client of the service behind the proxy.
func grpcClient(t *testing.T, f front, secure bool) (pb.TestServiceClient, *grpc.ClientConn) {
	t.Helper()
	creds := insecure.NewCredentials()
	if secure {
		creds = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	}
	cc, err := grpc.NewClient(f.Addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return pb.NewTestServiceClient(cc), cc
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// TestGRPC calls grpc-go from grpc-go through the proxy, with a limit on the
// route, over h2c and over TLS.
func TestGRPC(t *testing.T) {
	upstream := grpcServer(t)
	for name, secure := range map[string]bool{"h2c": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			f := start(t, setup{upstream: upstream, tls: secure, rest: `limits = ["wide"]
[limit.wide]
algorithm = "token-bucket"
rate = "1000/s"
burst = 100000
`})
			c, cc := grpcClient(t, f, secure)
			t.Run("unary", func(t *testing.T) { unary(t, c) })
			t.Run("server streams", func(t *testing.T) { serverStreams(t, c) })
			t.Run("client streams", func(t *testing.T) { clientStreams(t, c) })
			t.Run("both stream", func(t *testing.T) { bothStream(t, c) })
			t.Run("errors", func(t *testing.T) { grpcErrors(t, c, cc) })
			result(t, "unary, three kinds of streams, trailers, errors")
		})
	}
}

// unary checks a message and the metadata of head and trailer.
func unary(t *testing.T, c pb.TestServiceClient) {
	ctx := metadata.AppendToOutgoingContext(within(t, 20*time.Second),
		"x-grpc-test-echo-initial", "head", "x-grpc-test-echo-trailing-bin", "\x00\xff")
	var head, trailer metadata.MD
	res, err := c.UnaryCall(ctx, &pb.SimpleRequest{
		ResponseType: pb.PayloadType_COMPRESSABLE, ResponseSize: 300_000,
		Payload: &pb.Payload{Body: make([]byte, 200_000)},
	}, grpc.Header(&head), grpc.Trailer(&trailer))
	if err != nil || len(res.GetPayload().GetBody()) != 300_000 {
		t.Fatalf("%d bytes, %v", len(res.GetPayload().GetBody()), err)
	}
	if v := head.Get("x-grpc-test-echo-initial"); len(v) != 1 || v[0] != "head" {
		t.Errorf("metadata of the head: %v", head)
	}
	if v := trailer.Get("x-grpc-test-echo-trailing-bin"); len(v) != 1 || v[0] != "\x00\xff" {
		t.Errorf("metadata of the trailer: %v", trailer)
	}
	// Answers of a route with limits tell what is left.
	if len(head.Get("ratelimit")) != 1 {
		t.Errorf("no RateLimit field: %v", head)
	}
}

func serverStreams(t *testing.T, c pb.TestServiceClient) {
	stream, err := c.StreamingOutputCall(within(t, 20*time.Second), &pb.StreamingOutputCallRequest{
		ResponseParameters: sizes(100, 70_000, 1, 30_000),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{100, 70_000, 1, 30_000} {
		res, err := stream.Recv()
		if err != nil || len(res.GetPayload().GetBody()) != want {
			t.Fatalf("%d bytes, want %d, %v", len(res.GetPayload().GetBody()), want, err)
		}
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v", err)
	}
}

func clientStreams(t *testing.T, c pb.TestServiceClient) {
	stream, err := c.StreamingInputCall(within(t, 20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, n := range []int{27_000, 8, 0, 300_000} {
		sum += n
		if err := stream.Send(&pb.StreamingInputCallRequest{Payload: &pb.Payload{Body: make([]byte, n)}}); err != nil {
			t.Fatal(err)
		}
	}
	if res, err := stream.CloseAndRecv(); err != nil || int(res.GetAggregatedPayloadSize()) != sum {
		t.Errorf("the server counted %d bytes of %d, %v", res.GetAggregatedPayloadSize(), sum, err)
	}
}

// bothStream takes turns: each message is answered before the next is sent, so
// nothing on the way may wait for more.
func bothStream(t *testing.T, c pb.TestServiceClient) {
	stream, err := c.FullDuplexCall(within(t, 20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		if err := stream.Send(&pb.StreamingOutputCallRequest{ResponseParameters: sizes(i * 100)}); err != nil {
			t.Fatal(err)
		}
		if res, err := stream.Recv(); err != nil || len(res.GetPayload().GetBody()) != i*100 {
			t.Fatalf("message %d: %d bytes, %v", i, len(res.GetPayload().GetBody()), err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v", err)
	}
}

func sizes(ns ...int) (ps []*pb.ResponseParameters) {
	for _, n := range ns {
		ps = append(ps, &pb.ResponseParameters{Size: int32(n)})
	}
	return ps
}

// grpcErrors checks that a server's status arrives as it is: before the first
// message (in the head), behind messages (in the trailer), of a method that is
// not there, and of a deadline.
func grpcErrors(t *testing.T, c pb.TestServiceClient, cc *grpc.ClientConn) {
	ctx := within(t, 20*time.Second)
	failing := &pb.EchoStatus{Code: int32(codes.FailedPrecondition), Message: "not yet: 100% \n ünïcode"}
	_, err := c.UnaryCall(ctx, &pb.SimpleRequest{ResponseStatus: failing})
	if s := status.Convert(err); s.Code() != codes.FailedPrecondition || s.Message() != failing.Message {
		t.Errorf("in the head: %v", err)
	}

	stream, err := c.FullDuplexCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	stream.Send(&pb.StreamingOutputCallRequest{ResponseParameters: sizes(10)})
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	stream.Send(&pb.StreamingOutputCallRequest{ResponseStatus: failing})
	if _, err = stream.Recv(); status.Convert(err).Message() != failing.Message {
		t.Errorf("behind a message: %v", err)
	}

	if err := cc.Invoke(ctx, "/grpc.testing.TestService/NoSuchMethod", &pb.Empty{}, &pb.Empty{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a method that is not there: %v", err)
	}

	stream, err = c.FullDuplexCall(within(t, 200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a server that says nothing until the deadline: %v", err)
	}
}

// TestGRPCRefusals: a refusal is a status of gRPC, by the limit's status, and a
// call's own deadline is not waited for in a queue.
func TestGRPCRefusals(t *testing.T) {
	upstream := grpcServer(t)
	for _, c := range []struct {
		name, limit string
		timeout     time.Duration
		code        codes.Code
		reason      string
	}{
		{"429", "algorithm = \"token-bucket\"\nrate = \"1/h\"", 20 * time.Second, codes.ResourceExhausted, "limit"},
		{"503", "algorithm = \"token-bucket\"\nrate = \"1/h\"\nstatus = 503", 20 * time.Second, codes.Unavailable, "limit"},
		{"deadline before its turn", "algorithm = \"leaky-bucket\"\nrate = \"1/m\"\nqueue = 5\nmax_wait = \"1h\"", 5 * time.Second, codes.ResourceExhausted, "max_wait"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := start(t, setup{upstream: upstream, rest: "limits = [\"one\"]\n[limit.one]\n" + c.limit + "\n"})
			client, _ := grpcClient(t, f, false)
			if _, err := client.EmptyCall(within(t, 20*time.Second), &pb.Empty{}); err != nil {
				t.Fatalf("the first call: %v", err)
			}
			for range 10 {
				var told metadata.MD
				began := time.Now()
				_, err := client.EmptyCall(within(t, c.timeout), &pb.Empty{}, grpc.Trailer(&told))
				if status.Code(err) != c.code {
					t.Fatalf("the call after: %v, want %v", err, c.code)
				}
				if took := time.Since(began); took >= c.timeout {
					t.Errorf("refused after %s", took)
				}
				if ps := strings.Join(told.Get("proxy-status"), ""); !strings.Contains(ps, "error=http_request_denied") {
					t.Errorf("Proxy-Status %q of %v", ps, told)
				}
				if len(told.Get("retry-after")) != 1 {
					t.Errorf("no Retry-After: %v", told)
				}
			}
			result(t, "10 refusals, each %v", c.code)
		})
	}
}

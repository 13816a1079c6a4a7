package replay

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"testing"
)

// BenchmarkSimulate reads and replays a real access log of 10,000 lines through
// a limit by client and a queue.
func BenchmarkSimulate(b *testing.B) {
	f, err := os.Open("../../bench/e2e/testdata/combined-10k.log.gz")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		b.Fatal(err)
	}
	log, err := io.ReadAll(unzipped)
	if err != nil {
		b.Fatal(err)
	}
	c := load(b, `[limit.per-client]
algorithm = "token-bucket"
rate = "1/s"
burst = 5
key = "client-ip"
[limit.fragile]
algorithm = "leaky-bucket"
rate = "2/s"
queue = 30`+site+`limits = ["per-client", "fragile"]`)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		l, err := Read([]Source{{"log", bytes.NewReader(log)}}, Options{}, c)
		if err != nil {
			b.Fatal(err)
		}
		r, err := l.Run(0, nil)
		if err != nil {
			b.Fatal(err)
		}
		n += r.Report(0).Log.Requests
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "lines/s")
}

//go:build linux

// Alarms compares the ways for a queue to be woken at an instant:
//
//	go run ./bench/alarms [-ways …] [-loads …] [-rates …] [-for 4s] [-rounds 3]
//
// Each measurement is a process of its own, in which one waiter a departure
// stands parked on its channel, as the waiters of a queue do. An alarm, made in
// one of the ways, lets out all that are due. Lateness is taken where it
// counts: in the goroutine of the waiter, when it runs. Rounds are interleaved,
// so that what disturbs the machine disturbs all ways. See
// docs/design/0005-alarms.md.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

func main() {
	log.SetFlags(0)
	var (
		wayNames  = flag.String("ways", strings.Join(names(ways), ","), "which ways")
		loadNames = flag.String("loads", strings.Join(names(loads), ","), "what else the machine does")
		rates     = flag.String("rates", "20,200,1000", "departures a second")
		length    = flag.Duration("for", 4*time.Second, "how long a measurement takes")
		rounds    = flag.Int("rounds", 3, "how often each is measured")
		waiting   = flag.Int("waiting", 0, "how many wait; 0 means as many as leave")
		stop      = flag.Duration("stop", 0, "suspend the measured process for so long in the middle")
		child     = flag.Bool("child", false, "measure here: one way, one load, one rate (used by the program itself)")
	)
	flag.Parse()
	if *child {
		if err := measureHere(*wayNames, *loadNames, *rates, *length, *waiting); err != nil {
			log.Fatal(err)
		}
		return
	}
	found := map[[3]string][]result{}
	var order [][3]string
	for round := range *rounds {
		for _, load := range strings.Split(*loadNames, ",") {
			for _, rate := range strings.Split(*rates, ",") {
				for _, way := range strings.Split(*wayNames, ",") {
					k := [3]string{load, rate, way}
					if round == 0 {
						order = append(order, k)
					}
					r, err := measureThere(way, load, rate, *length, *waiting, *stop)
					if err != nil {
						log.Fatalf("%s, %s, %s/s: %v", way, load, rate, err)
					}
					found[k] = append(found[k], r)
				}
			}
		}
	}
	print(order, found)
}

// A result is what one process measured.
type result struct {
	Median, P99, Max time.Duration // of lateness
	CPU              float64       // % of one processor, spent by the process, its load included
}

// measureThere measures in a process of its own: some ways change the process
// for good, and none shall find it warmed up by another.
func measureThere(way, load, rate string, length time.Duration, waiting int, stop time.Duration) (result, error) {
	self, err := os.Executable()
	if err != nil {
		return result{}, err
	}
	endLoad, err := loads[index(loads, load)].outside()
	if err != nil {
		return result{}, err
	}
	defer endLoad()
	cmd := exec.Command(self, "-child", "-ways", way, "-loads", load, "-rates", rate,
		"-for", length.String(), "-waiting", strconv.Itoa(waiting))
	cmd.Stderr = os.Stderr
	if stop > 0 {
		go suspend(cmd, length/2, stop)
	}
	out, err := cmd.Output()
	if err != nil {
		return result{}, err
	}
	var r result
	return r, json.Unmarshal(out, &r)
}

func measureHere(way, load, rate string, length time.Duration, waiting int) error {
	perSecond, err := strconv.ParseFloat(rate, 64)
	if err != nil {
		return err
	}
	interval := time.Duration(float64(time.Second) / perSecond)
	endLoad := loads[index(loads, load)].inside()
	r, err := measure(ways[index(ways, way)], interval, int(length/interval), waiting)
	endLoad()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// print prints medians over the rounds.
func print(order [][3]string, found map[[3]string][]result) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	last := [3]string{}
	for _, k := range order {
		if k[0] != last[0] || k[1] != last[1] {
			fmt.Fprintf(w, "%s\t%s/s\tmedian ms\tp99\tmax\tCPU %%\t\n", k[0], k[1])
			last = k
		}
		ms := func(of func(result) time.Duration) float64 {
			return median(found[k], func(r result) float64 { return of(r).Seconds() * 1e3 })
		}
		fmt.Fprintf(w, "\t%s\t%.3f\t%.2f\t%.2f\t%.2f\t\n", k[2],
			ms(func(r result) time.Duration { return r.Median }),
			ms(func(r result) time.Duration { return r.P99 }),
			ms(func(r result) time.Duration { return r.Max }),
			median(found[k], func(r result) float64 { return r.CPU }))
	}
	w.Flush()
}

func median(rounds []result, of func(result) float64) float64 {
	var all []float64
	for _, r := range rounds {
		all = append(all, of(r))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

type named interface{ String() string }

func names[T named](all []T) []string {
	var s []string
	for _, x := range all {
		s = append(s, x.String())
	}
	return s
}

func index[T named](all []T, name string) int {
	i := slices.Index(names(all), name)
	if i < 0 {
		log.Fatalf("there is no %q, only %s", name, strings.Join(names(all), ", "))
	}
	return i
}

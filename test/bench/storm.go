// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// Joins is what a join service makes of a thousand machines, simulated in one process with it: real TLS, the real protocol, its
// records in memory.
type Joins struct {
	P50   float64 `json:"p50"`   // ms, one machine after the other
	P99   float64 `json:"p99"`   // ms
	Bare  float64 `json:"bare"`  // ms of a mutual TLS 1.3 handshake and a signature, in between
	Ratio float64 `json:"ratio"` // of P50 to Bare
	// All at the same moment, each from that moment on.
	StormP50 float64 `json:"stormP50"` // s
	StormP99 float64 `json:"stormP99"` // s
	Peak     float64 `json:"peak"`     // MiB of heap, machines and service
	Kept     float64 `json:"kept"`     // KiB of heap for each machine that is in
}

// joins runs the join service's own benchmarks, which need this module's source.
func (b *bench) joins(ctx context.Context) (*Joins, error) {
	b.say("join service: a thousand machines, one after the other and all at once")
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^(BenchmarkJoin1000|BenchmarkStorm1000)$", "-benchtime", "1x",
		"github.com/slipway-project/slipway/internal/control/joinserver")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("measure the join service: %w\n%s", err, out)
	}
	return readJoins(string(out))
}

// readJoins takes the values from lines such as "BenchmarkJoin1000-2  1  5080143530 ns/op  704 bare-µs  4619 p50-µs".
func readJoins(out string) (*Joins, error) {
	values := map[string]float64{}
	for line := range strings.Lines(out) {
		name, _, _ := strings.Cut(line, "-")
		for _, m := range regexp.MustCompile(`([0-9.e+]+) ([a-zA-Z0-9]+[-/]?[a-zA-Zµ]*)`).FindAllStringSubmatch(line, -1) {
			if v, err := strconv.ParseFloat(m[1], 64); err == nil {
				values[name+" "+m[2]] = v
			}
		}
	}
	const one, storm = "BenchmarkJoin1000 ", "BenchmarkStorm1000 "
	j := &Joins{
		P50: values[one+"p50-µs"] / 1e3, P99: values[one+"p99-µs"] / 1e3, Bare: values[one+"bare-µs"] / 1e3, Ratio: values[one+"ratio"],
		StormP50: values[storm+"p50-ms"] / 1e3, StormP99: values[storm+"p99-ms"] / 1e3, Peak: values[storm+"peak-MiB"], Kept: values[storm+"kept-KiB"],
	}
	if j.P50 == 0 || j.Ratio == 0 || j.StormP99 == 0 || j.Peak == 0 {
		return nil, fmt.Errorf("measure the join service: its benchmarks print something else:\n%s", out)
	}
	return j, nil
}

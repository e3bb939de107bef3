// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/attest/token"
	"github.com/slipway-project/slipway/internal/core/config"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/operate"
)

// Joins has the figures of a join service with a thousand simulated machines in one process: real TLS, the real protocol, records in
// memory.
type Joins struct {
	P50   float64 `json:"p50"`   // ms, one machine after the other
	P99   float64 `json:"p99"`   // ms
	Bare  float64 `json:"bare"`  // ms of a mutual TLS 1.3 handshake with a signature
	Ratio float64 `json:"ratio"` // of P50 to Bare
	// All at the same time, each measured from that time on.
	StormP50 float64 `json:"stormP50"` // s
	StormP99 float64 `json:"stormP99"` // s
	Peak     float64 `json:"peak"`     // MiB of heap, machines and service
	Kept     float64 `json:"kept"`     // KiB of heap for each machine that has joined
}

// joins runs the join service's own benchmarks, which need this module's source.
func (b *bench) joins(ctx context.Context) (*Joins, error) {
	b.say("join service: a thousand machines, one after the other and all at the same time")
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^(BenchmarkJoin1000|BenchmarkStorm1000)$", "-benchtime", "1x",
		"github.com/slipway-project/slipway/internal/control/joinserver")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("measure the join service: %w\n%s", err, out)
	}
	return readJoins(string(out))
}

// readJoins reads the values from lines such as "BenchmarkJoin1000-2  1  5080143530 ns/op  704 bare-µs  4619 p50-µs".
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
		return nil, fmt.Errorf("measure the join service: values are missing in the output of its benchmarks:\n%s", out)
	}
	return j, nil
}

// Live has the figures of a real control plane's join service, with records in etcd, and simulated machines. They join with tokens first;
// then their keys are known, and they join without.
type Live struct {
	Machines int     `json:"machines"`
	NewP50   float64 `json:"newP50"` // s, with tokens, all at the same time
	NewP99   float64 `json:"newP99"`
	AllP50   float64 `json:"allP50"` // s, known, all at the same time
	AllP99   float64 `json:"allP99"`
	OneP50   float64 `json:"oneP50"` // ms, known, one after the other
	OneP99   float64 `json:"oneP99"`
	Grown    float64 `json:"grown"` // MiB by which the PSS of the control plane's agent has grown
}

const (
	crowdSize  = 100
	crowdFirst = 100 // last byte of the first address
)

// crowd is the input of the process that joins for all simulated machines. It runs in their network.
type crowd struct {
	Endpoint string
	Pin      pin.Pin
	Machines []crowdMachine
}

type crowdMachine struct {
	Name    string
	Address netip.Addr
	Key     []byte // PKCS#8
	Token   string
}

// live has simulated machines, each with its own key and address, join at the cluster's first control plane. The cluster is useless
// afterwards, because their nodes never become ready.
func (b *bench) live(ctx context.Context, s *Several) error {
	name := b.cluster + "-crowd"
	if err := b.bootFree(ctx, name, workersJoin); err != nil {
		return err
	}
	c, err := b.invite(ctx)
	if err != nil {
		return err
	}
	before, err := b.agentSize()
	if err != nil {
		return err
	}
	s.Live = &Live{Machines: crowdSize}
	if err := b.gather(ctx, name, c, s.Live); err != nil {
		return err
	}
	after, err := b.agentSize()
	s.Live.Grown = float64(after-before) / mebibyte
	b.say("%d machines join a real control plane: %+v", crowdSize, *s.Live)
	return err
}

// invite creates a key for each simulated machine, and a token for that key.
func (b *bench) invite(ctx context.Context) (c crowd, err error) {
	for i := range crowdSize {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return c, err
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return c, err
		}
		public, err := x509.MarshalPKIXPublicKey(key.Public())
		if err != nil {
			return c, err
		}
		m := crowdMachine{Name: fmt.Sprintf("%s-crowd-%d", b.cluster, i), Address: netip.AddrFrom4([4]byte{10, 89, 0, byte(crowdFirst + i)}), Key: private}
		t, err := operate.CreateToken(ctx, b.inventory, b.cluster, operate.TokenOptions{Pool: "worker", Node: m.Name, Key: string(pin.Of(public)), TTL: 10 * time.Minute})
		if err != nil {
			return c, err
		}
		m.Token = t.Token
		c.Machines, c.Pin = append(c.Machines, m), pin.Pin(t.Pin)
	}
	_, machines, err := b.inventory.List(ctx, b.cluster)
	if err != nil {
		return c, err
	}
	for _, m := range machines {
		if m.Name == b.main(0) {
			c.Endpoint = netip.AddrPortFrom(m.Address, config.JoinPort).String()
		}
	}
	return c, nil
}

// gather runs the simulated machines in the network of an otherwise idle machine.
func (b *bench) gather(ctx context.Context, name string, c crowd, l *Live) error {
	var script strings.Builder
	for _, m := range c.Machines {
		fmt.Fprintf(&script, "ip address add %s/24 dev eth0\n", m.Address)
	}
	code, err := operate.Exec(ctx, b.inventory, b.cluster, name, machine.Command{Args: []string{"/bin/sh", "-ec", script.String()}})
	if err != nil || code != 0 {
		return errors.Join(fmt.Errorf("add addresses to machine %s: exit code %d", name, code), err)
	}
	_, machines, err := b.inventory.List(ctx, b.cluster)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	input, err := json.Marshal(c)
	if err != nil {
		return err
	}
	for _, m := range machines {
		if m.Name != name {
			continue
		}
		var out, complaint bytes.Buffer
		cmd := exec.CommandContext(ctx, "nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", m.PID), self, "-crowd")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &complaint
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("join as simulated machines: %w: %s", err, complaint.Bytes())
		}
		return json.Unmarshal(out.Bytes(), l)
	}
	return fmt.Errorf("machine %s does not exist any more", name)
}

// agentSize returns the PSS of the first control plane's agent.
func (b *bench) agentSize() (int64, error) {
	group, err := findCgroup("slipway/" + b.cluster + "/" + b.main(0))
	if err != nil {
		return 0, err
	}
	pids, err := group.pids()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		if p, ok := look(pid); ok && p.program == agentProgram {
			return p.pss, nil
		}
	}
	return 0, fmt.Errorf("measure agent of %s: it is not running", b.main(0))
}

// runCrowd joins as all machines in its input: first with tokens at the same time, then as known machines at the same time, then one after
// the other. It discards what the machines get.
func runCrowd(ctx context.Context, in io.Reader, out io.Writer) error {
	var c crowd
	if err := json.NewDecoder(in).Decode(&c); err != nil {
		return fmt.Errorf("read simulated machines: %w", err)
	}
	at, err := netip.ParseAddrPort(c.Endpoint)
	if err != nil {
		return err
	}
	l := Live{Machines: len(c.Machines)}
	if l.NewP50, l.NewP99, err = c.atOnce(ctx, at); err != nil {
		return fmt.Errorf("with tokens: %w", err)
	}
	for i := range c.Machines {
		c.Machines[i].Token = ""
	}
	if l.AllP50, l.AllP99, err = c.atOnce(ctx, at); err != nil {
		return fmt.Errorf("as known machines: %w", err)
	}
	var single []float64
	for _, m := range c.Machines {
		begun := time.Now()
		if err := m.join(ctx, at, c.Pin); err != nil {
			return fmt.Errorf("as a known machine: %w", err)
		}
		single = append(single, float64(time.Since(begun).Microseconds())/1e3)
	}
	l.OneP50, l.OneP99 = percentiles(single)
	return json.NewEncoder(out).Encode(l)
}

// atOnce has all machines join at the same time. The seconds of each count from the common start.
func (c crowd) atOnce(ctx context.Context, at netip.AddrPort) (p50, p99 float64, err error) {
	took := make([]float64, len(c.Machines))
	begun := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for i, m := range c.Machines {
		group.Go(func() error {
			err := m.join(ctx, at, c.Pin)
			took[i] = time.Since(begun).Seconds()
			return err
		})
	}
	err = group.Wait()
	p50, p99 = percentiles(took)
	return p50, p99, err
}

func percentiles(values []float64) (p50, p99 float64) {
	slices.Sort(values)
	return values[len(values)/2], values[len(values)*99/100]
}

// join does what an agent does, until it has its certificates.
func (m crowdMachine) join(ctx context.Context, at netip.AddrPort, ca pin.Pin) error {
	parsed, err := x509.ParsePKCS8PrivateKey(m.Key)
	if err != nil {
		return err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return errors.New("read key of simulated machine: not an ECDSA key")
	}
	last := joinclient.Status{}
	_, err = joinclient.Join(ctx, joinclient.Config{
		Endpoints: func() []netip.AddrPort { return []netip.AddrPort{at} }, Pin: ca, Key: key, Keys: freshKeys{}, Prover: token.Prover{Text: m.Token}, Node: m.Name,
		Facts: coremachine.Facts{Address: m.Address}, Slipway: "bench",
		Log: slog.New(slog.DiscardHandler), Report: func(s joinclient.Status) { last = s },
	})
	if err != nil {
		return fmt.Errorf("%s: %w, waiting for %s (%s)", m.Name, err, last.What, last.Detail)
	}
	return nil
}

// freshKeys creates keys and discards them.
type freshKeys struct{}

// Request implements joinclient.Keys.
func (freshKeys) Request(pki.Want) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
}

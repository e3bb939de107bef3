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
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/launch"
	"github.com/slipway-project/slipway/internal/machine"
)

// Live is what the join service of a real control plane made of simulated machines, its records in etcd. They come with tokens
// first; from then on their keys are known, and they need none.
type Live struct {
	Machines int     `json:"machines"`
	NewP50   float64 `json:"newP50"` // s, with tokens, all at the same moment
	NewP99   float64 `json:"newP99"`
	AllP50   float64 `json:"allP50"` // s, known, all at the same moment
	AllP99   float64 `json:"allP99"`
	OneP50   float64 `json:"oneP50"` // ms, known, one after the other
	OneP99   float64 `json:"oneP99"`
	Grown    float64 `json:"grown"` // MiB of PSS by which the agent that let them in has grown
}

const (
	crowdSize  = 100
	crowdFirst = 100 // the last byte of the first address
)

// crowd is what the process is told that joins for all machines of a crowd. It runs in their network.
type crowd struct {
	Endpoint string
	Pin      string
	Machines []crowdMachine
}

type crowdMachine struct {
	Name    string
	Address netip.Addr
	Key     []byte // PKCS#8
	Token   string
}

// live has a crowd join the cluster's first control plane: machines with keys and addresses of their own, simulated in one process.
// The cluster is of no use afterwards, for none of them comes up.
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

// invite gives every machine of the crowd a key, and a token for that key.
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
		t, err := b.launcher.CreateToken(ctx, b.cluster, launch.TokenOptions{Pool: "worker", Node: m.Name, Key: roster.Pin(public), TTL: 10 * time.Minute})
		if err != nil {
			return c, err
		}
		m.Token = t.Token
		c.Machines, c.Pin = append(c.Machines, m), t.Pin
	}
	machines, err := b.launcher.MachineList(ctx, b.cluster)
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

// gather runs the crowd in the network of a machine that has nothing else to do.
func (b *bench) gather(ctx context.Context, name string, c crowd, l *Live) error {
	var script strings.Builder
	for _, m := range c.Machines {
		fmt.Fprintf(&script, "ip address add %s/24 dev eth0\n", m.Address)
	}
	code, err := b.launcher.Exec(ctx, b.cluster, name, machine.Command{Args: []string{"/bin/sh", "-ec", script.String()}})
	if err != nil || code != 0 {
		return errors.Join(fmt.Errorf("give machine %s addresses: ended with %d", name, code), err)
	}
	machines, err := b.launcher.MachineList(ctx, b.cluster)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	told, err := json.Marshal(c)
	if err != nil {
		return err
	}
	for _, m := range machines {
		if m.Name != name {
			continue
		}
		var out, complaint bytes.Buffer
		cmd := exec.CommandContext(ctx, "nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", m.PID), self, "-crowd")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(told), &out, &complaint
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("join for a crowd: %w: %s", err, complaint.Bytes())
		}
		return json.Unmarshal(out.Bytes(), l)
	}
	return fmt.Errorf("machine %s is gone", name)
}

// agentSize is the PSS of the first control plane's agent.
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
	return 0, fmt.Errorf("agent of %s: it does not run", b.main(0))
}

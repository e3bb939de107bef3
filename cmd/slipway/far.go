// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/slipway-project/slipway/internal/node/facts"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/preflight"
	"github.com/slipway-project/slipway/internal/proxy"
	"github.com/slipway-project/slipway/internal/sshhost"
)

// machineReport prints what slipway apply has to know of the machine that this runs on. It changes nothing there.
func machineReport(ctx context.Context, args []string) error {
	found, err := facts.Find()
	if err != nil {
		return err
	}
	r := preflight.Report{
		Slipway: version, Arch: preflight.Arch(), Now: time.Now().UTC(), Facts: found, Lock: string(lock.Free),
	}
	if r.Hostname, err = os.Hostname(); err != nil {
		return err
	}
	if r.Addresses, err = addresses(); err != nil {
		return err
	}
	if _, err := os.Stat(keepDir); err == nil {
		journal, err := lock.Open(filepath.Join(keepDir, "lock"))
		if err != nil {
			return err
		}
		now := journal.State()
		r.Lock, r.Cluster, r.Node = string(now.Phase), now.Cluster, now.Node
	}
	r.Findings = preflight.RunNode(ctx, preflight.NodeOptions{
		Root: stateDir, ControlPlane: len(args) > 0 && args[0] == "control-plane", Ours: r.Lock != string(lock.Free),
	})
	return json.NewEncoder(os.Stdout).Encode(r)
}

func addresses() ([]string, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	out := []string{}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			out = append(out, n.IP.String())
		}
	}
	return out, nil
}

// stream joins standard input and output to a unix socket until either side has ended.
func stream(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%s: name a socket", sshhost.StreamCommand)
	}
	conn, err := proxy.DialUnix(ctx, args[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(os.Stdout, sshhost.StreamHello); err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() {
		_, err := io.Copy(conn, os.Stdin)
		ended <- err
	}()
	go func() {
		_, err := io.Copy(os.Stdout, conn)
		ended <- err
	}()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/slipway-project/slipway/internal/node/facts"
	"github.com/slipway-project/slipway/internal/node/prepare"
	"github.com/slipway-project/slipway/internal/preflight"
	"github.com/slipway-project/slipway/internal/proxy"
	"github.com/slipway-project/slipway/internal/sshhost"
)

// machineReport prints what slipway apply needs to know about this machine.
func machineReport(ctx context.Context, args []string) error {
	r, err := preflight.ReportMachine(ctx, stateDir, version, len(args) > 0 && args[0] == "control-plane")
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// stream connects standard input and output to a unix socket.
func stream(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%s: name a socket", sshhost.StreamCommand)
	}
	conn, err := proxy.DialUnix(ctx, args[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	return sshhost.Stream(conn, os.Stdin, os.Stdout)
}

// thisHost is the machine whose operating system is prepared.
func thisHost(out io.Writer) prepare.Host {
	return prepare.Host{Root: "/", Shared: facts.SharedKernel(), Manager: facts.PackageManager("/"), Out: out}
}

// nodeTask carries out one task of a plan; with --check it only finds out whether its work is done.
func nodeTask(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "--check" {
		return thisHost(nil).Done(ctx, args[1:])
	}
	return thisHost(os.Stdout).Do(ctx, args)
}

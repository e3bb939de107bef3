// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"os"

	"github.com/slipway-project/slipway/internal/node/facts"
	"github.com/slipway-project/slipway/internal/node/prepare"
)

// thisHost is the machine whose operating system is prepared.
func thisHost(out io.Writer) prepare.Host {
	return prepare.Host{Root: "/", Shared: facts.SharedKernel(), Manager: facts.PackageManager("/"), Out: out}
}

// nodeTask does one task of a plan; with --check it only asks whether its work is done.
func nodeTask(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "--check" {
		return thisHost(nil).Done(ctx, args[1:])
	}
	return thisHost(os.Stdout).Do(ctx, args)
}

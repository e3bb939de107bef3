// SPDX-License-Identifier: Apache-2.0

package balancer

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
)

// Command is the hidden command "api-balancer --listen ADDR --roster FILE --ca FILE --cluster-ca FILE", which workers run as a
// unit. It says READY=1 to the supervisor when clients can connect. It returns nil when ctx ends.
func Command(ctx context.Context, args []string, log *slog.Logger) error {
	c := Config{Log: log, Ready: func() error { return notify(ctx, os.Getenv("NOTIFY_SOCKET"), "READY=1") }}
	flags := flag.NewFlagSet("api-balancer", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&c.Listen, "listen", "127.0.0.1:6443", "where clients connect")
	flags.StringVar(&c.Roster, "roster", "", "the node's roster file")
	flags.StringVar(&c.JoinCA, "ca", "", "certificate of the join CA")
	flags.StringVar(&c.ClusterCA, "cluster-ca", "", "certificate of the cluster's CA")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("api-balancer is started by the agent: %w", err)
	}
	if c.Roster == "" || c.JoinCA == "" || c.ClusterCA == "" || flags.NArg() > 0 {
		return errors.New("api-balancer is started by the agent; it needs --roster, --ca and --cluster-ca, and nothing else")
	}
	debug.SetGCPercent(25)         // a few hundred KiB live: collect early rather than grow
	debug.SetMemoryLimit(16 << 20) // soft; it only makes the collector work harder
	return Run(ctx, c)
}

// notify tells a supervisor something, as sd_notify(3) describes. Without a socket there is nobody to tell.
func notify(ctx context.Context, socket, text string) error {
	if socket == "" {
		return nil
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unixgram", socket) // "@…" is an abstract name for net, too
	if err != nil {
		return err
	}
	_, err = io.WriteString(conn, text)
	return errors.Join(err, conn.Close())
}

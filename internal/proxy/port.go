// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/durable"
)

type portRecord struct{ Port uint16 }

const portSearch = 2000 // ports tried from FirstPort upwards

func (c Config) port() (uint16, error) {
	var r portRecord
	if err := durable.Load(c.portFile(), recordSchema, &r); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("read proxy port: %w", err)
	}
	return r.Port, nil
}

// listen takes the recorded port, or the first free one and records it.
func (c Config) listen(ctx context.Context, port uint16) (*net.TCPListener, uint16, error) {
	var lc net.ListenConfig
	if port != 0 {
		ln, err := lc.Listen(ctx, "tcp4", endpoint(port, 0, false).Addr.String())
		if err != nil {
			return nil, port, fmt.Errorf("listen on 127.0.0.1:%d, which the cluster's kubeconfig names; end the process that uses it (ss -ltnp 'sport = %d'): %w", port, port, err)
		}
		return ln.(*net.TCPListener), port, nil
	}
	for try := 0; try < portSearch && int(c.FirstPort)+try < 65536; try++ {
		port := c.FirstPort + uint16(try)
		ln, err := lc.Listen(ctx, "tcp4", endpoint(port, 0, false).Addr.String())
		if errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EACCES) {
			continue
		}
		if err != nil {
			return nil, 0, fmt.Errorf("listen for the API: %w", err)
		}
		if err := durable.Save(c.portFile(), recordSchema, portRecord{port}); err != nil {
			return nil, 0, errors.Join(err, ln.Close())
		}
		return ln.(*net.TCPListener), port, nil
	}
	return nil, 0, fmt.Errorf("listen for the API: no free port of 127.0.0.1 from %d on", c.FirstPort)
}

// listenAgain is for the moment in which a recorded port is taken and its child is not known: the child is just ending, or
// it has not recorded itself yet because whoever started it was killed. It returns a listener or the child.
func (c Config) listenAgain(ctx context.Context, port uint16, taken error) (*net.TCPListener, childRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if r, err := c.running(); err == nil && r.Process.PID != 0 && r.Follows {
			return nil, r, nil
		}
		if ln, _, err := c.listen(ctx, port); err == nil {
			return ln, childRecord{}, nil
		}
		select {
		case <-ctx.Done():
			return nil, childRecord{}, taken
		case <-tick.C:
		}
	}
}

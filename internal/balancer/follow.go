// SPDX-License-Identifier: Apache-2.0

package balancer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/node/rosterfile"
)

// follow keeps the pool at the roster file's newest generation, and the watches of its servers alive, until ctx ends. What
// cannot be read changes nothing: unknown is not empty.
func (p *pool) follow(ctx context.Context) {
	var watches sync.WaitGroup
	defer watches.Wait()
	start := func(s *server) {
		watching, stop := context.WithCancel(ctx)
		s.stop = stop
		watches.Go(func() { defer stop(); p.watch(watching, s) })
	}
	hints, err := watchFolder(ctx, filepath.Dir(p.c.Roster))
	if err != nil {
		p.c.Log.Warn("roster file is looked at now and then only", "every", p.pace.look, "error", err)
	}
	look := time.NewTicker(p.pace.look)
	defer look.Stop()
	last := ""
	for {
		r, err := p.load()
		switch {
		case err == nil:
			if last = ""; p.use(r, start) {
				p.c.Log.Info("roster taken", "generation", r.Generation, "servers", len(r.API), "further", len(r.Extra))
			}
		case err.Error() != last:
			last = err.Error()
			p.c.Log.Warn("waiting for a roster that can be used; the agent writes it", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-hints:
		case <-look.C:
		}
	}
}

func (p *pool) load() (roster.Roster, error) {
	text, err := os.ReadFile(p.c.JoinCA)
	if err != nil {
		return roster.Roster{}, fmt.Errorf("read join CA: %w", err)
	}
	ca, err := pki.Certificate(p.c.JoinCA, text)
	if err != nil {
		return roster.Roster{}, fmt.Errorf("read join CA: %w", err)
	}
	return rosterfile.Load(p.c.Roster, ca)
}

// watchFolder gives a hint each time something in a folder is written or renamed, until ctx ends. The folder is watched and
// not the file, which each change replaces by another one.
func watchFolder(ctx context.Context, dir string) (<-chan struct{}, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MOVED_TO|unix.IN_CLOSE_WRITE|unix.IN_CREATE); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", dir, err), f.Close())
	}
	hints := make(chan struct{}, 1)
	go func() {
		defer f.Close()
		defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Now()) })()
		buf := make([]byte, 4096)
		for {
			if _, err := f.Read(buf); err != nil {
				return // ctx has ended; and if not, the slow look remains
			}
			select {
			case hints <- struct{}{}:
			default: // one is on its way
			}
		}
	}()
	return hints, nil
}

// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/machine/process"
)

const readyWord = "ready"

// Child is the hidden command "proxy-serve DIR" that [Spawn] runs: the listener is file 3, file 4 takes the word that it
// stands. It returns nil when ctx ends.
func Child(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("proxy-serve is started by slipway up; it needs DIR")
	}
	c := Config{Dir: args[0]}
	unix.CloseOnExec(3)
	unix.CloseOnExec(4)
	lf, tell := os.NewFile(3, "listener"), os.NewFile(4, "ready")
	if lf == nil || tell == nil {
		return errors.New("proxy-serve: no listener was passed on")
	}
	ln, err := net.FileListener(lf)
	_ = lf.Close()
	if err != nil {
		return fmt.Errorf("proxy-serve: take listener: %w", err)
	}
	id, err := process.Identify(os.Getpid())
	if err != nil {
		return fmt.Errorf("proxy-serve: %w", err)
	}
	if err := saveChild(c, childRecord{id, exeOf(os.Getpid()), true}); err != nil {
		return fmt.Errorf("proxy-serve: %w", err)
	}
	_, err = tell.WriteString(readyWord)
	if err := errors.Join(err, tell.Close()); err != nil && !errors.Is(err, unix.EPIPE) { // the parent may be gone
		return fmt.Errorf("proxy-serve: %w", err)
	}
	return ServeTCP(ctx, ln, c.follow())
}

func saveChild(c Config, r childRecord) error { return durable.Save(c.childFile(), recordSchema, r) }

// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// InitKind says who is PID 1 of a machine. It is chosen once: a machine keeps it for its life.
type InitKind string

// The kinds.
const (
	OwnInit InitKind = "slipway" // [Init]: reaps, and restarts the agent
	Systemd InitKind = "systemd" // the host's systemd, with next to nothing enabled but the agent: see [BecomeSystemd]
)

// InitKinds lists them all, the usual one first.
func InitKinds() []InitKind { return []InitKind{OwnInit, Systemd} }

// ErrOtherInit says that a machine exists and boots with another PID 1 than is wanted.
var ErrOtherInit = errors.New("a machine keeps the init that it was made with")

// stopSignal asks PID 1 to take the machine down in order.
func (k InitKind) stopSignal() unix.Signal {
	if k == Systemd {
		return unix.Signal(37) // SIGRTMIN+3: halt.target
	}
	return unix.SIGTERM
}

// settleInit decides what boots: what the machine has, or what is wanted of a new one.
func (l *Local) settleInit(s *Spec, old record) error {
	have, err := l.initOf(s.Cluster, s.Name, old)
	if err != nil {
		return err
	}
	switch {
	case s.Init == "" && have == "":
		s.Init = OwnInit
	case s.Init == "" || s.Init == have:
		s.Init = have
	case have != "":
		return fmt.Errorf("machine %s boots with init %s, wanted is %s: %w; destroy the cluster first, or leave the choice away", s.Name, have, s.Init, ErrOtherInit)
	}
	if s.Init == Systemd {
		_, err := findSystemd("/")
		return err
	}
	return nil
}

// initOf is the kind that an existing machine has, empty for a new one. Where the record is lost, the machine's own disk tells.
func (l *Local) initOf(cluster, name string, r record) (InitKind, error) {
	if r.Spec.Init != "" {
		return r.Spec.Init, nil
	}
	if r.Spec.Name != "" {
		return OwnInit, nil // made before there was a choice
	}
	f := l.folders(cluster, name)
	_, err := os.Lstat(filepath.Join(f.data(systemdData), "system", agentUnit))
	if err == nil {
		return Systemd, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("look which init machine %s has: %w", name, err)
	}
	_, err = os.Lstat(f.console()) // made just before the first boot
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return OwnInit, err
}

func checkInit(k InitKind) error {
	if k != "" && !slices.Contains(InitKinds(), k) {
		return fmt.Errorf("init %q: use one of %v", k, InitKinds())
	}
	return nil
}

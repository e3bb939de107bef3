// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/report"
)

// clusterLock is the cluster's lock on this host, as one run uses it. It is released while the run only waits. Another run may
// then remove the cluster or store another spec; afterwards there is nothing left for this run to do.
type clusterLock struct {
	dir     clusterdir.Dir
	cluster clusterdir.Cluster
	report  report.Func
	stored  bool   // this run has stored its spec
	unlock  func() // nil while the lock is not held
}

// acquire takes the lock unless it is held already. It fails when another run has changed the cluster meanwhile.
func (l *clusterLock) acquire(ctx context.Context) error {
	if l.unlock != nil {
		return nil
	}
	unlock, err := l.dir.Lock(ctx, l.cluster.Name, l.report)
	if err != nil {
		return err
	}
	l.unlock = unlock
	return l.unchanged()
}

func (l *clusterLock) release() {
	if l.unlock != nil {
		l.unlock()
		l.unlock = nil
	}
}

// store stores this run's spec. The lock must be held.
func (l *clusterLock) store() error {
	l.stored = true
	return l.dir.Store(l.cluster)
}

// unchanged is an error when the spec that this run has stored is no longer the cluster's.
func (l *clusterLock) unchanged() error {
	if !l.stored {
		return nil
	}
	text, err := os.ReadFile(l.dir.Spec(l.cluster.Name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("cluster %s was removed meanwhile", l.cluster.Name)
	case err != nil:
		return fmt.Errorf("read the stored spec: %w", err)
	case !bytes.Equal(text, l.cluster.Spec):
		return fmt.Errorf("another slipway up has given cluster %s another spec meanwhile: see slipway status --name %s", l.cluster.Name, l.cluster.Name)
	}
	return nil
}

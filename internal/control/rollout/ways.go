// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"errors"
	"time"

	"github.com/slipway-project/slipway/internal/control/lease"
	"github.com/slipway-project/slipway/internal/control/registry"
)

// Ways are several ways to the same records, best first: who restarts its own API server is heard of through another one.
type Ways func() []lease.Records

var _ lease.Records = Ways(nil)

// wayTime is for one way; an API server that is gone says so at once, one that hangs does not.
const wayTime = 3 * time.Second

// Load is lease.Records.
func (w Ways) Load(ctx context.Context, kind, name string, into any) (version string, err error) {
	return w.first(ctx, func(ctx context.Context, r lease.Records) (string, error) { return r.Load(ctx, kind, name, into) })
}

// Save is lease.Records. A write that was done although its answer was lost fails on the next way as somebody else's.
func (w Ways) Save(ctx context.Context, kind, name, version string, value any) (newVersion string, err error) {
	return w.first(ctx, func(ctx context.Context, r lease.Records) (string, error) {
		return r.Save(ctx, kind, name, version, value)
	})
}

func (w Ways) first(ctx context.Context, ask func(context.Context, lease.Records) (string, error)) (string, error) {
	var errs []error
	for _, r := range w() {
		one, cancel := context.WithTimeout(ctx, wayTime)
		version, err := ask(one, r)
		cancel()
		if err == nil || isAnswer(err) || ctx.Err() != nil {
			return version, err
		}
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return "", errors.New("no API server is known")
	}
	return "", errs[0] // the own one's; the others' are of the same kind
}

func isAnswer(err error) bool {
	return errors.Is(err, registry.ErrNotFound) || errors.Is(err, registry.ErrConflict) || errors.Is(err, registry.ErrExists)
}

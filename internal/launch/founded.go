// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/initclient"
)

// founded waits until the cluster has been made. Nobody waits for a single machine when nobody wants to.
func (u *up) founded(ctx context.Context, machines provider, first *member) error {
	if first.phase == committedPhase || u.o.Wait == 0 && !u.several() {
		return nil
	}
	client, err := u.dialInit(ctx, machines, first)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // nothing is lost with it
	watching, seen := context.WithCancelCause(ctx)
	defer seen(nil)
	go func() {
		if first.untilCommitted(watching) {
			seen(errCommitted)
		}
	}()
	_, err = client.Watch(watching, u.founding.ID, func(initclient.Event) {})
	var failed *initclient.FailedError
	switch {
	case errors.As(err, &failed):
		u.founding.ID = requestID("up") // another try is another request
		return errors.Join(fmt.Errorf("initialise %s: %w: run slipway up again when that is mended", first.Name, err),
			durable.Save(u.foundingFile(), foundingSchema, u.founding))
	case err != nil && !errors.Is(context.Cause(watching), errCommitted) && !first.committed(ctx):
		return fmt.Errorf("initialise %s: %w", first.Name, err)
	}
	first.phase = committedPhase
	_ = client.Done(ctx, u.founding.ID) // if it does not hear, it keeps the answer for a while
	return u.forgetFounding()
}

// errCommitted: the machine says so itself. Whoever has its answer, another up for example, has ended its init service: then there
// is nobody left to watch.
var errCommitted = errors.New("the machine is committed")

// untilCommitted returns when the machine has been in a cluster for a while, so that the answer comes first where there is one.
func (m *member) untilCommitted(ctx context.Context) bool {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for times := 0; times < 2; {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		if times++; !m.committed(ctx) {
			times = 0
		}
	}
	return true
}

func (m *member) committed(ctx context.Context) bool {
	_, now, err := m.agent.Meet(ctx)
	return err == nil && now.phase == committedPhase
}

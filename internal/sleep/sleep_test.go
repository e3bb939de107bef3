// SPDX-License-Identifier: Apache-2.0

package sleep_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-project/slipway/internal/sleep"
)

func TestFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		if err := sleep.For(t.Context(), time.Minute); err != nil || time.Since(begun) != time.Minute {
			t.Errorf("got %v after %s", err, time.Since(begun))
		}
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		begun = time.Now()
		if err := sleep.For(ctx, time.Minute); !errors.Is(err, why) || time.Since(begun) != time.Second {
			t.Errorf("got %v after %s, want the cause after a second", err, time.Since(begun))
		}
	})
}

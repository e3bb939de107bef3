// SPDX-License-Identifier: Apache-2.0

// Package testkit waits in tests for what another process or goroutine does. It is never part of what ships.
//
// Read [Until].
//
//	testkit.Eventually(t, "the second roster", func() bool { return node.Generation() == 2 })
package testkit

import (
	"errors"
	"testing"
	"time"
)

// Until calls ask until it returns nil, first every 2 ms and later every 50 ms. It fails the test with ask's last error
// after limit, or when the test's context ends.
func Until(t testing.TB, limit time.Duration, what string, ask func() error) {
	t.Helper()
	begun := time.Now()
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := ask()
		if err == nil {
			return
		}
		if time.Since(begun) > limit || t.Context().Err() != nil {
			t.Fatalf("waited %s for %s: %v", time.Since(begun).Round(time.Millisecond), what, err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-t.Context().Done():
			timer.Stop()
		}
	}
}

// Eventually is Until for a condition, with a limit of a minute, which is far more than anything on a busy machine takes.
func Eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	Until(t, time.Minute, what, func() error {
		if is() {
			return nil
		}
		return errors.New("not yet")
	})
}

// SPDX-License-Identifier: Apache-2.0

// Package testkit helps tests: it waits for what another process or goroutine does, and seeds random choices with the commit. It is never
// part of what ships.
//
// Read [Until] and [Sample].
//
//	testkit.Eventually(t, "the second roster", func() bool { return node.Generation() == 2 })
package testkit

import (
	"errors"
	"hash/fnv"
	"os"
	"os/exec"
	"strings"
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

// Sample names what a test chooses at random and returns a seed for it. Both depend only on SLIPWAY_SAMPLE or, without it, on the commit
// that is checked out: all runs of a commit choose the same, and another commit chooses differently. Without a commit they are constant.
func Sample(t testing.TB) (name string, seed uint64) {
	t.Helper()
	name = os.Getenv("SLIPWAY_SAMPLE")
	if name == "" {
		commit, err := exec.CommandContext(t.Context(), "git", "rev-parse", "--short=12", "HEAD").Output()
		if name = strings.TrimSpace(string(commit)); err != nil || name == "" {
			name = "fixed"
		}
	}
	return name, Hash(name)
}

// Hash returns a number for a text, to seed random choices.
func Hash(text string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(text))
	return h.Sum64()
}

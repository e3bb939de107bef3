// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"testing"
)

// A command is not hit by what the terminal sends to bench, and says what it said when it fails.
func TestRunLine(t *testing.T) {
	t.Parallel()
	r := runLine(t.Context(), "sh", "-c", `cut -d " " -f 1,5 /proc/$$/stat`) // pid and process group
	if pid, group, _ := strings.Cut(strings.TrimSpace(r.output), " "); r.err != nil || pid == "" || pid != group {
		t.Errorf("%q, %v: want a process group of its own", r.output, r.err)
	}
	if r := runLine(t.Context(), "sh", "-c", "echo out; echo err >&2; exit 3"); r.err == nil || r.output != "out\nerr\n" || !strings.Contains(r.err.Error(), "exit status 3\nout\nerr") {
		t.Errorf("%q, %v", r.output, r.err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := runLine(ctx, "true"); r.err == nil {
		t.Error("it began after its end")
	}
}

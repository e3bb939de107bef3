// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// failpointFile holds the number of the step after which the agent kills itself, once. Tests write it.
const failpointFile = "/var/lib/slipway/failpoint"

// failpoint crashes as hard as a process can after the step that the file names, and removes the file first, so that the
// next agent lives.
func failpoint() func(n int, s plan.Step) {
	return func(n int, _ plan.Step) {
		text, err := os.ReadFile(failpointFile)
		if err != nil {
			return
		}
		if want, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || n < want {
			return
		}
		if os.Remove(failpointFile) == nil {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package units

import (
	"os"
	"syscall"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// tick is more than the kernel's clock for files may be behind the other one.
const tick = 50 * time.Millisecond

// liesSince reports whether what a process reads of an item is certain to be what it could read at that time. The kernel's own
// time of the last change (ctime) tells: a rename or a copy sets it too, and nobody sets it back. What cannot be looked at, or
// was begun in the future, is not certain. Only a clock that was wrong then and has been set back since could deceive it.
func liesSince(item plan.Item, at time.Time) bool {
	if at.IsZero() || at.After(time.Now()) {
		return false
	}
	for _, path := range read(item) {
		info, err := os.Lstat(path)
		if err != nil {
			return false
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || !info.Mode().IsRegular() && !isArtifact(item) { // a link's target has a time of its own
			return false
		}
		if changed := time.Unix(stat.Ctim.Unix()); changed.After(at.Add(-tick)) {
			return false
		}
	}
	return true
}

// read lists the files that make an item's fingerprint. What has none, such as a folder or another unit, is never read at a start.
func read(item plan.Item) []string {
	switch it := item.(type) {
	case plan.File:
		return []string{it.Path}
	case plan.Kubeconfig:
		return []string{it.Path}
	case plan.StaticPod:
		return []string{it.Path}
	case plan.Artifact: // a link whose target is named by its content
		return []string{it.Path}
	case plan.Cert:
		if it.Want.KeyPath == "" {
			return []string{it.Want.CertPath}
		}
		if it.Want.CertPath == "" {
			return []string{it.Want.KeyPath}
		}
		return []string{it.Want.CertPath, it.Want.KeyPath}
	case plan.Dir, plan.Mount, plan.Precondition, plan.Unit:
		return nil
	}
	return []string{""} // unknown: there is no such file
}

func isArtifact(item plan.Item) bool {
	_, ok := item.(plan.Artifact)
	return ok
}

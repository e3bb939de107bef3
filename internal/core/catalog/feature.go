// SPDX-License-Identifier: Apache-2.0

package catalog

import "slices"

// Feature is something that is true of some releases and not of others. Code
// asks Has and never compares versions.
type Feature string

// The features. A release file may name no other.
const (
	// CgroupV1Refused: kubelet ends on a cgroup v1 host unless failCgroupV1 is
	// false (KEP-5573, since 1.35).
	CgroupV1Refused Feature = "CgroupV1Refused"
	// NFTablesProxy: kube-proxy's nftables mode is stable (KEP-3866, since 1.33).
	NFTablesProxy Feature = "NFTablesProxy"
	// SandboxImageInRuntime: kubelet has no --pod-infra-container-image; the
	// pause image is set in containerd (since 1.35).
	SandboxImageInRuntime Feature = "SandboxImageInRuntime"
	// StructuredAuthorization: --authorization-config is stable (KEP-3221,
	// since 1.32).
	StructuredAuthorization Feature = "StructuredAuthorization"
	// StaticPodsWithoutReferences: a static pod may not name Secrets or
	// ConfigMaps (since 1.37).
	StaticPodsWithoutReferences Feature = "StaticPodsWithoutReferences"
)

var features = []Feature{
	CgroupV1Refused, NFTablesProxy, SandboxImageInRuntime, StructuredAuthorization, StaticPodsWithoutReferences,
}

// Has says whether f is true of this release.
func (r Release) Has(f Feature) bool { return slices.Contains(r.Features, f) }

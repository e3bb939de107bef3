// SPDX-License-Identifier: Apache-2.0

package catalog

import "slices"

// Feature is something that is true of some releases and not of others. Code asks [Release.Has] and never
// compares versions. A feature that no code asks about is removed.
type Feature string

// CgroupV1Refused: the kubelet exits on a cgroup v1 host unless failCgroupV1 is false (KEP-5573, since 1.35).
const CgroupV1Refused Feature = "CgroupV1Refused"

// features are the names that a release file may use.
var features = []Feature{CgroupV1Refused}

// Has reports whether f is true of this release.
func (r Release) Has(f Feature) bool { return slices.Contains(r.Features, f) }

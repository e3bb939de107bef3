// SPDX-License-Identifier: Apache-2.0

// Package compose is the one way from a spec's text to the plan of each node, for the operator's side and for the control planes
// that let machines in: read, choose the release, complete, configure, plan. It decides nothing of its own.
//
// Read [Cluster] and [Node].
package compose

import (
	"fmt"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// Cluster reads and completes a spec. The name is taken where the spec has none; the version, if not empty, instead of the spec's.
// Problems are what the user has to mend; err is about the release.
func Cluster(file string, text []byte, name, version string) (config.Cluster, catalog.Release, []spec.Problem, error) {
	parsed, problems := spec.Parse(file, text, spec.Options{Minors: minors(), Name: name})
	if version != "" {
		parsed.Minor = version
	}
	release := catalog.Default()
	if v := parsed.Minor; v != "" {
		var err error
		switch release, err = catalog.Find(v); {
		case err != nil && len(problems) > 0: // without a release there is no more to find
			return config.Cluster{}, release, problems, nil
		case err != nil:
			return config.Cluster{}, release, nil, err
		}
		parsed.Minor = release.Minor() // "1.36.4" and "v1.36" name it, too
	}
	if len(problems) > 0 {
		return config.Cluster{}, release, config.Unknown(parsed, release, problems), nil
	}
	complete, problems := config.Complete(parsed, release)
	return Place(complete, nil), release, problems, nil
}

// Kept is a cluster's completed spec, as its control document keeps it.
func Kept(text []byte, name string) (config.Cluster, catalog.Release, error) {
	c, release, problems, err := Cluster("the cluster's spec", text, name, "")
	switch {
	case err != nil:
		return config.Cluster{}, release, err
	case len(problems) > 0:
		return config.Cluster{}, release, fmt.Errorf("the kept spec: %s", problems[0])
	}
	return c, release, nil
}

func minors() []string {
	var out []string
	for _, r := range catalog.Releases() {
		out = append(out, r.Minor())
	}
	return out
}

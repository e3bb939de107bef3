// SPDX-License-Identifier: Apache-2.0

// Package compose leads from a spec's text to the plan of each node: it parses the spec, chooses the release, applies the
// defaults, places units and plans. The operator's commands and the control planes both use it, so that they agree.
//
// Read [Cluster] and [Node] first.
package compose

import (
	"fmt"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// Options of [Cluster].
type Options struct {
	Name    string // of the cluster, if not empty: overrides the spec's
	Version string // of Kubernetes, if not empty: overrides the spec's
}

// Cluster reads and completes a spec. Problems are for the user to fix; err is about the release. The caller places the
// units, once: see [Place].
func Cluster(file string, text []byte, o Options) (config.Cluster, catalog.Release, []spec.Problem, error) {
	parsed, problems := spec.Parse(file, text, spec.Options{Minors: minors(), Name: o.Name})
	if o.Version != "" {
		parsed.KubernetesVersion = o.Version
	}
	release := catalog.Default()
	if v := parsed.KubernetesVersion; v != "" {
		var err error
		switch release, err = catalog.Find(v); {
		case err != nil && len(problems) > 0: // without a release, no more problems can be found
			return config.Cluster{}, release, problems, nil
		case err != nil:
			return config.Cluster{}, release, nil, err
		}
		parsed.KubernetesVersion = release.Minor() // "1.36.4" and "v1.36" name it, too
	}
	if len(problems) > 0 {
		return config.Cluster{}, release, config.Unknown(parsed, release, problems), nil
	}
	complete, problems := config.Complete(parsed, release)
	return complete, release, problems, nil
}

// Stored reads a cluster's completed spec, as its control document holds it. Units stay where that spec says.
func Stored(text []byte, name string) (config.Cluster, catalog.Release, error) {
	c, release, problems, err := Cluster("the cluster's spec", text, Options{Name: name})
	switch {
	case err != nil:
		return config.Cluster{}, release, err
	case len(problems) > 0:
		return config.Cluster{}, release, fmt.Errorf("read the stored spec: %s", problems[0])
	}
	return Place(c, nil), release, nil
}

func minors() []string {
	var out []string
	for _, r := range catalog.Releases() {
		out = append(out, r.Minor())
	}
	return out
}

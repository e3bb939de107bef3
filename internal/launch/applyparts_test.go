// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/slipway-project/slipway/internal/artifact"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// Whatever the form of the control plane: a machine is sent each file of the release that its plan takes, and no other.
func TestApplySendsWhatAPlanTakes(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"HostUnits", "StaticPods"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			c := mustComplete(t, `spec:
  controlPlane: {form: `+form+`}
  pools:
  - {name: cp, roles: [control-plane], machines: [{name: c1, address: 192.0.2.1}, {name: c2, address: 192.0.2.2}, {name: c3, address: 192.0.2.3}]}
  - {name: w, roles: [worker], machines: [{name: w1, address: 192.0.2.4}]}
`)
			a := &apply{up: &up{cluster: c}}
			a.bundle = artifact.Bundle{Binaries: map[string]artifact.Blob{}, Images: map[string]artifact.Blob{}}
			n := 0
			blob := func() artifact.Blob {
				n++
				d, err := artifact.ParseDigest(fmt.Sprintf("sha256:%064d", n))
				if err != nil {
					t.Fatal(err)
				}
				return artifact.Blob{Digest: d, Size: 1}
			}
			for _, component := range c.Release.Components {
				for _, b := range component.Binaries {
					a.bundle.Binaries[b.Name] = blob()
				}
			}
			for _, i := range c.Release.Images() {
				a.bundle.Images[i.Name] = blob()
			}
			a.components = digests(a.bundle)
			var all fleet
			for _, p := range c.Config.Pools {
				for _, node := range p.Nodes {
					all = append(all, &member{NodeName: node, pool: p, facts: coremachine.Facts{Address: netip.MustParseAddr("192.0.2.9")}})
				}
			}
			for _, m := range all {
				d, err := all.decide(c.Config, m.Name, a.components)
				if err != nil {
					t.Fatal(err)
				}
				sent := map[string]bool{}
				for _, b := range a.parts(d.plan) {
					sent[b.Digest.String()] = true
				}
				takes := map[string]bool{}
				for _, e := range d.plan.Entries {
					if f, ok := e.Item.(plan.Artifact); ok {
						takes[f.Digest] = true
						if !sent[f.Digest] {
							t.Errorf("%s is not sent %s", m.Name, f.Name)
						}
					}
				}
				if len(sent) != len(takes) || len(takes) < 5 {
					t.Errorf("%s is sent %d files, and takes %d", m.Name, len(sent), len(takes))
				}
			}
		})
	}
}

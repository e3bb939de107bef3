// SPDX-License-Identifier: Apache-2.0

package launch

import "testing"

func TestWasRemoved(t *testing.T) {
	t.Parallel()
	me := enrolment{key: "sha256:me", node: "dev-worker-0", phase: committedPhase}
	other := Node{Name: "dev-main-0", Key: "sha256:other"}
	for name, tt := range map[string]struct {
		nodes []Node
		want  bool
	}{
		"known":                               {[]Node{other, {Name: "dev-worker-0", Key: "sha256:me"}}, false},
		"known by another name":               {[]Node{other, {Name: "edge", Key: "sha256:me"}}, false},
		"removed":                             {[]Node{other}, true},
		"removed, and its Node is there":      {[]Node{other, {Name: "dev-worker-0"}}, true},
		"another machine has its name":        {[]Node{other, {Name: "dev-worker-0", Key: "sha256:third"}}, false},
		"the records do not answer":           {[]Node{{Name: "dev-main-0"}, {Name: "dev-worker-0"}}, false},
		"nobody knows anything of any node":   {nil, false},
		"a cluster of which only it is there": {[]Node{{Name: "dev-worker-0", Key: "sha256:me"}}, false},
	} {
		if got := wasRemoved(tt.nodes, me); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

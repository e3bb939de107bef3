// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/control"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/planner"
)

var update = flag.Bool("update", false, "rewrite testdata")

const documentSpec = `spec:
  networking: {clusterDomain: shop.internal}
  pools:
  - {name: main, labels: {tier: gold}, taints: [{key: dedicated, value: shop, effect: NoSchedule}], count: 1}
  components: {apiserver: {flags: {secure-port: 7443}}}
  addOns:
  - name: extra
    manifest: |
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: extra, namespace: default}
      data: {answer: "42"}
`

func nodesOf(t *testing.T, c config.Cluster) []config.Node {
	t.Helper()
	n, err := config.ForNode(c, c.Pools[0].Nodes[0].Name, coremachine.Facts{Address: netip.MustParseAddr("192.0.2.10")})
	if err != nil {
		t.Fatal(err)
	}
	return []config.Node{n}
}

// TestDocument: what the control role is told, without the objects' bodies, which package objects tests.
func TestDocument(t *testing.T) {
	t.Parallel()
	c := mustComplete(t, documentSpec).Config
	data, err := controlDocument(c, nodesOf(t, c)[0].Name, nodesOf(t, c), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := control.Decode(data)
	if err != nil {
		t.Fatalf("the role does not understand it: %v", err)
	}
	if again, err := controlDocument(c, nodesOf(t, c)[0].Name, nodesOf(t, c), nil, nil); err != nil || !bytes.Equal(data, again) {
		t.Errorf("made again, it is other bytes: %v", err)
	}
	for _, env := range []string{`{"name":"KUBERNETES_SERVICE_HOST","value":"192.0.2.10"}`, `{"name":"KUBERNETES_SERVICE_PORT","value":"7443"}`} {
		if !bytes.Contains(data, []byte(env)) {
			t.Errorf("CoreDNS is not told of the API server's own address and port: no %s", env)
		}
	}
	for i := range doc.AddOns {
		for j, o := range doc.AddOns[i].Objects {
			doc.AddOns[i].Objects[j] = map[string]any{"is": o.String()}
		}
	}
	if cluster, _, problems, err := compose.Cluster("kept", doc.Config, compose.Options{Name: "dev"}); err != nil || len(problems) > 0 || cluster.Name != c.Name {
		t.Errorf("who joins cannot be planned for by it: %v, %v", err, problems)
	}
	doc.Config = nil // package config tests it
	got, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const file = "testdata/document.json"
	if *update {
		if err := os.WriteFile(file, append(got, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
		t.Errorf("document (-want +got):\n%s", diff)
	}
}

// The role's gates are named as the plan names them: what is not on the board is not waited for.
func TestPlanHasWhatTheRoleWaitsFor(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/cluster.yaml"
	if err := os.WriteFile(file, []byte(shortest), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := (&Launcher{Root: t.TempDir()}).Plan(t.Context(), Source{File: file}, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{
		"kubeconfig/" + config.ControlConf, "kubeconfig/" + config.SuperAdminConf, "unit/kube-apiserver", "unit/kubelet",
		"unit/kube-controller-manager", "unit/kube-scheduler", "unit/kube-proxy",
	} {
		if _, ok := p.Plan.Find(ref); !ok {
			t.Errorf("the plan has no %s", ref)
		}
	}
}

func TestDigests(t *testing.T) {
	t.Parallel()
	a, b := artifact.Digest("sha256:"+strings.Repeat("a", 64)), artifact.Digest("sha256:"+strings.Repeat("b", 64))
	got := digests(artifact.Bundle{
		Binaries: map[string]artifact.Blob{"kube": {Digest: a}}, Images: map[string]artifact.Blob{"example.org/pause:1": {Digest: b}},
	})
	if diff := cmp.Diff(planner.Components{"kube": a.String(), "example.org/pause:1": b.String()}, got); diff != "" {
		t.Errorf("digests (-want +got):\n%s", diff)
	}
}

// Every node of any spec can be looked at before there is a machine or a component, workers included.
func TestPlanBeforeAnything(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := dir + "/cluster.yaml"
	text := shortest + "spec: {pools: [{name: cp, roles: [control-plane], count: 1}, {name: work, roles: [worker], count: 2}]}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l := &Launcher{Root: dir + "/root"}
	for node, want := range map[string]string{"": "dev-cp-0", "dev-work-1": "dev-work-1"} {
		p, err := l.Plan(t.Context(), Source{File: file}, node)
		if err != nil {
			t.Fatal(err)
		}
		if p.Plan.Node != want || len(p.Plan.Entries) == 0 || len(p.Assumed) != 2 {
			t.Errorf("%q: %s with %d entries, assumed %v", node, p.Plan.Node, len(p.Plan.Entries), p.Assumed)
		}
		if _, err := l.Diff(t.Context(), Source{File: file}); !errors.Is(err, ErrNoCluster) {
			t.Errorf("a comparison with nothing: %v", err)
		}
	}
	_, err := l.Plan(t.Context(), Source{File: file}, "nobody")
	if err == nil || err.Error() != `node "nobody": cluster dev has dev-cp-0, dev-work-0, dev-work-1` {
		t.Errorf("unknown node: %v", err)
	}
	if _, err := os.Stat(l.Root); err == nil {
		t.Error("looking at a plan made folders")
	}
}

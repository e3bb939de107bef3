// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/control"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
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

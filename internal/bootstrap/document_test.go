// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/slipway-project/slipway/internal/control"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/planner"
)

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

// The document holds the sources; what the control plane computes from them is tested in core/compose and control.
func TestDocument(t *testing.T) {
	t.Parallel()
	c := mustComplete(t, documentSpec).Config
	first := c.Pools[0].Nodes[0].Name
	records := []admission.Node{{Name: first, Pool: "main", Address: netip.MustParseAddr("192.0.2.10")}}
	data, err := controlDocument(c, first, records, planner.Components{"kube": "sha256:k"})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := controlDocument(c, first, records, planner.Components{"kube": "sha256:k"}); err != nil || !bytes.Equal(data, again) {
		t.Errorf("the same sources give other bytes: %v", err)
	}
	doc, err := control.Decode(data)
	if err != nil {
		t.Fatalf("the control role cannot read the document: %v", err)
	}
	d, err := doc.Desired()
	if err != nil {
		t.Fatalf("the control role cannot compute from the document: %v", err)
	}
	if d.Self != first || d.Config.Name != c.Name || d.Config.ClusterDomain != "shop.internal" || d.Components["kube"] != "sha256:k" || len(d.Records) != 1 {
		t.Errorf("got %+v", d.Document)
	}
	text, err := json.Marshal(d.AddOns)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`{"name":"KUBERNETES_SERVICE_HOST","value":"192.0.2.10"}`, `{"name":"KUBERNETES_SERVICE_PORT","value":"7443"}`, `"answer":"42"`} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("the add-ons have no %s", want)
		}
	}
}

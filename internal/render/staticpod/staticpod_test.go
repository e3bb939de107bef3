// SPDX-License-Identifier: Apache-2.0

package staticpod_test

import (
	"flag"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/render"
	"github.com/slipway-project/slipway/internal/render/rendertest"
	"github.com/slipway-project/slipway/internal/render/staticpod"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// everyKind is a plan with every kind of item.
func everyKind(manifest string) plan.Plan {
	var b plan.Builder
	dir := b.Add(plan.Dir{Path: "/etc/kubernetes/manifests", Mode: 0o755})
	conf := b.Add(plan.File{Path: "/etc/kubernetes/audit-policy.yaml", Mode: 0o600, Content: "kind: Policy\n"})
	b.Add(plan.File{Path: "/etc/kubernetes/encryption.yaml", Mode: 0o600, Content: "key: {{k}}\n", Fill: map[string]string{"{{k}}": "/k"}})
	bin := b.Add(plan.Artifact{Path: "/opt/slipway/images/kube.tar", Digest: "sha256:" + strings.Repeat("0", 64), Name: "example.org/kube:1"})
	b.Add(plan.Mount{Target: "/var/lib/etcd", Source: "/dev/disk/by-label/etcd", Type: "ext4"})
	cert := b.Add(plan.Cert{Want: pki.Want{Name: "ca", Kind: pki.CA, KeyPath: "/etc/kubernetes/pki/ca.key"}})
	b.Add(plan.Kubeconfig{Path: "/etc/kubernetes/admin.conf", Cluster: "c", User: "admin", Server: "https://127.0.0.1:6443"}, cert)
	gate := b.Add(plan.Precondition{Name: "etcd-permit", Provider: "init", Ready: plan.Probe{Kind: plan.ProbeFile, Path: "/permit"}})
	kubelet := b.Add(plan.Unit{Name: "kubelet", Args: []string{"/bin/true"}}, bin)
	b.Add(plan.StaticPod{
		Name: "kube-apiserver", Path: "/etc/kubernetes/manifests/kube-apiserver.yaml", Component: true, Manifest: manifest, Inputs: []plan.Ref{conf},
	}, conf, dir, kubelet, gate)
	b.Add(plan.StaticPod{Name: "web", Path: "/etc/kubernetes/manifests/web.yaml", Manifest: "kind: Pod # " + plan.PodUID + "\n"}, dir)
	return b.Plan("c", "n1", "1.36.4")
}

const api = "kind: Pod\nmetadata: {uid: '" + plan.PodUID + "', annotations: {hash: '" + plan.PodInputs + "'}}\n"

func TestRenderOfEveryKind(t *testing.T) {
	t.Parallel()
	r, err := staticpod.Render(everyKind(api))
	if err != nil {
		t.Fatal(err)
	}
	rendertest.Golden(t, *update, "every-kind.txt", rendertest.Text(r))
}

// A pod changes with its manifest, as on a node.
func TestAnotherManifestIsAnotherPod(t *testing.T) {
	t.Parallel()
	one, err := staticpod.Render(everyKind(api))
	if err != nil {
		t.Fatal(err)
	}
	two, err := staticpod.Render(everyKind(api + "spec: {}\n"))
	if err != nil {
		t.Fatal(err)
	}
	uid := func(r render.Rendered) string {
		_, after, _ := strings.Cut(rendertest.Text(r), "uid: '")
		return after[:32]
	}
	if uid(one) == uid(two) || strings.ContainsAny(uid(one), "{}") {
		t.Errorf("got pod uids %s and %s, want different ones", uid(one), uid(two))
	}
}

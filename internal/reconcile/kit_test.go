// SPDX-License-Identifier: Apache-2.0

package reconcile_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/backend/fake"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
)

func newLoop(h reconcile.Host) *reconcile.Loop {
	return &reconcile.Loop{Host: h, Board: reconcile.NewBoard(), Log: slog.New(slog.DiscardHandler)}
}

func newFake(t *testing.T) *fake.Host {
	t.Helper()
	h := fake.New()
	t.Cleanup(h.Close)
	return h
}

func unit(name string, inputs ...plan.Ref) plan.Unit {
	return plan.Unit{Name: name, Args: []string{"/bin/" + name}, Inputs: inputs}
}

func build(add func(b *plan.Builder)) plan.Plan {
	var b plan.Builder
	add(&b)
	return b.Plan("dev", "n1", "1.36.4")
}

// smallCluster is a plan with most kinds in it: a chain, two branches and a oneshot.
func smallCluster(h *fake.Host) plan.Plan {
	h.Behave("import", fake.Behaviour{Exit: true})
	return build(func(b *plan.Builder) {
		dir := b.Add(plan.Dir{Path: "/etc/c", Mode: 0o755})
		ca := b.Add(plan.Cert{Want: pki.Want{Name: "ca", Kind: pki.CA, CertPath: "/etc/c/ca.crt", KeyPath: "/etc/c/ca.key"}}, dir)
		conf := b.Add(plan.File{Path: "/etc/c/conf", Mode: 0o600, Content: "a: b\n"}, dir)
		bin := b.Add(plan.Artifact{Path: "/opt/etcd", Digest: "sha256:00"})
		etcd := b.Add(unit("etcd", conf), conf, ca, bin)
		b.Add(unit("api"), etcd)
		runtime := b.Add(unit("runtime"), bin)
		image := unit("import")
		image.Oneshot = true
		b.Add(image, runtime)
		b.Add(plan.StaticPod{Name: "web", Path: "/etc/c/pod.yaml", Manifest: "kind: Pod\n"}, dir)
	})
}

func converge(t *testing.T, l *reconcile.Loop, want, before plan.Plan) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // of a fake clock
	defer cancel()
	if err := l.Converge(ctx, want, before); err != nil {
		t.Fatalf("converge: %v", err)
	}
}

func verbs(steps []plan.Step) string {
	var out []string
	for _, s := range steps {
		out = append(out, string(s.Verb)+" "+s.Ref.String())
	}
	return strings.Join(out, "\n")
}

func phase(b *reconcile.Board, ref string) reconcile.Status {
	all, _ := b.All()
	for _, s := range all {
		if s.Ref == ref {
			return s
		}
	}
	return reconcile.Status{}
}

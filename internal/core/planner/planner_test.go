// SPDX-License-Identifier: Apache-2.0

package planner_test

import (
	"flag"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/golden"
)

var update = flag.Bool("update", false, "rewrite the expected sections in testdata")

var release = catalog.Default()

// bundle gives each component a digest of its own.
func bundle() planner.Components {
	out := planner.Components{}
	for i, name := range []string{
		"containerd", "containerd-shim-runc-v2", "ctr", "runc", "kube", "kubectl", "etcd", "etcdctl", "bridge", "host-local", "loopback", "portmap",
		release.ImageName("pause"), release.ImageName("coredns"), release.ImageName("kube"), release.ImageName("etcd"),
	} {
		out[name] = fmt.Sprintf("sha256:%064d", i+1)
	}
	return out
}

func completed(t testing.TB, text string) config.Cluster {
	t.Helper()
	s, problems := spec.Parse("spec.yaml", []byte(text), spec.Options{Minors: []string{release.Minor()}})
	if len(problems) == 0 {
		var c config.Cluster
		if c, problems = config.Complete(s, release); len(problems) == 0 {
			return c
		}
	}
	t.Fatalf("problems: %v", problems)
	return config.Cluster{}
}

func planOf(t testing.TB, c config.Cluster, node string) plan.Plan {
	t.Helper()
	n, err := config.ForNode(c, node, machine.Facts{Address: netip.MustParseAddr("192.0.2.10"), OOMScoreAdj: true, UpstreamDNS: true})
	if err != nil {
		t.Fatal(err)
	}
	p, err := planner.For(n, bundle())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// eachPlan runs a subtest for each spec in testdata, with the plan of its first machine.
func eachPlan(t *testing.T, check func(t *testing.T, spec string, p plan.Plan)) {
	t.Helper()
	for name, story := range golden.Read(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := golden.Input(story)
			check(t, spec, firstPlan(t, spec))
		})
	}
}

func firstPlan(t *testing.T, spec string) plan.Plan {
	t.Helper()
	c := completed(t, spec)
	return planOf(t, c, c.Pools[0].Nodes[0].Name)
}

func TestPlans(t *testing.T) {
	t.Parallel()
	golden.Check(t, *update, "shortest", func(t *testing.T, spec string) (string, string) {
		return "plan.txt", text(firstPlan(t, spec))
	})
}

// text is a plan as a reviewer reads it: what, after what, and how a unit's readiness is asked.
func text(p plan.Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %s, Kubernetes %s\n", p.Node, p.Cluster, p.Release)
	for _, e := range p.Entries {
		fmt.Fprintf(&b, "%s\n", e.Ref)
		for _, n := range e.Needs {
			fmt.Fprintf(&b, "  needs %s\n", n)
		}
		switch it := e.Item.(type) {
		case plan.Unit:
			for _, in := range it.Inputs {
				fmt.Fprintf(&b, "  restarts with %s\n", in)
			}
			fmt.Fprintf(&b, "  waits for %s\n", it.Ready)
			if it.Ready.Cert != "" {
				fmt.Fprintf(&b, "  as %s\n", it.Ready.Cert)
			}
		case plan.StaticPod:
			for _, in := range it.Inputs {
				fmt.Fprintf(&b, "  another pod with %s\n", in)
			}
			fmt.Fprintf(&b, "  waits for %s\n", it.Ready)
			for line := range strings.Lines(it.Manifest) {
				fmt.Fprintf(&b, "  | %s", line)
			}
		case plan.Precondition:
			fmt.Fprintf(&b, "  waits for %s, from %s\n", it.Ready, it.Provider)
		case plan.Kubeconfig:
			fmt.Fprintf(&b, "  %s at %s\n", it.User, it.Server)
		default:
		}
	}
	return b.String()
}

func TestSound(t *testing.T) {
	t.Parallel()
	eachPlan(t, func(t *testing.T, _ string, p plan.Plan) {
		wire, err := plan.Encode(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := plan.Decode(wire); err != nil { // checks that needs are closed and in order
			t.Error(err)
		}
		paths := map[string]plan.Ref{}
		claim := func(path string, by plan.Ref) {
			if other, taken := paths[path]; taken && path != "" {
				t.Errorf("%s is of %s and of %s", path, other, by)
			}
			paths[path] = by
		}
		for _, e := range p.Entries {
			switch it := e.Item.(type) {
			case plan.Cert:
				claim(it.Want.CertPath, e.Ref)
				claim(it.Want.KeyPath, e.Ref)
			case plan.Unit, plan.Precondition:
			case plan.StaticPod:
				claim(it.Path, e.Ref)
				claim(it.At, e.Ref)
			default:
				claim(e.Item.Key(), e.Ref)
			}
		}
		for _, e := range p.Entries {
			reads(t, p, e, paths)
		}
	})
}

// reads: what an entry refers to by path comes before it, if the plan makes it.
func reads(t *testing.T, p plan.Plan, e plan.Entry, made map[string]plan.Ref) {
	t.Helper()
	var refers []string
	switch it := e.Item.(type) {
	case plan.Kubeconfig:
		refers = []string{it.CAFile, it.CertFile, it.KeyFile}
	case plan.Cert:
		refers = []string{it.Want.SignerCert, it.Want.SignerKey}
	case plan.Unit:
		for _, a := range append(it.Args, it.Ready.Args...) {
			if _, value, ok := strings.Cut(a, "="); ok {
				a = value
			}
			refers = append(refers, a)
		}
		refers = append(refers, it.Ready.CA, it.Ready.Cert, it.Ready.Key)
	case plan.StaticPod: // all that it mounts
		for _, found := range regexp.MustCompile(`path: (/\S+)`).FindAllStringSubmatch(it.Manifest, -1) {
			refers = append(refers, found[1])
		}
		refers = append(refers, it.Ready.CA, it.Ready.Cert, it.Ready.Key, path.Dir(it.Path))
		if it.At != "" {
			refers = append(refers, path.Dir(it.At))
		}
	case plan.File:
		for _, path := range it.Fill {
			refers = append(refers, path)
		}
	default:
	}
	before := closure(p, e)
	for _, path := range refers {
		if by, ok := made[path]; ok && path != "" && !before[by] {
			t.Errorf("%s refers to %s and does not come after %s", e.Ref, path, by)
		}
	}
}

func closure(p plan.Plan, e plan.Entry) map[plan.Ref]bool {
	out := map[plan.Ref]bool{}
	open := e.Needs
	for len(open) > 0 {
		ref := open[0]
		open = open[1:]
		if !out[ref] {
			out[ref] = true
			need, _ := p.Find(ref.String())
			open = append(open, need.Needs...)
		}
	}
	return out
}

// long matches what could be key material. Digests are not secrets, and secrets are not shorter.
var long = regexp.MustCompile(`[A-Za-z0-9+/]{40,}={0,2}`)

func TestNoSecretsInPlan(t *testing.T) {
	t.Parallel()
	eachPlan(t, func(t *testing.T, _ string, p plan.Plan) {
		wire, err := plan.Encode(p)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(wire), "-----BEGIN") {
			t.Error("the plan holds PEM")
		}
		known := strings.Join(digests(), " ")
		for _, word := range long.FindAllString(string(wire), -1) {
			if !strings.Contains(known, word) && !strings.HasPrefix(word, "/") && !strings.Contains(word, "/etc/") {
				t.Errorf("the plan holds %q, which may be key material", word)
			}
		}
		for _, e := range p.Entries {
			if c, ok := e.Item.(plan.Cert); ok && c.Want.Kind == pki.Secret && (c.Want.KeyPath == "" || c.Want.CertPath != "") {
				t.Errorf("%s: %+v", e.Ref, c.Want)
			}
		}
	})
}

func digests() []string {
	var out []string
	for _, d := range bundle() {
		out = append(out, d)
	}
	return out
}

func TestDeterministic(t *testing.T) {
	t.Parallel()
	eachPlan(t, func(t *testing.T, spec string, p plan.Plan) {
		first, err := plan.Encode(p)
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			again, err := plan.Encode(planOf(t, completed(t, spec), p.Node))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(first), string(again)); diff != "" {
				t.Fatalf("planned again (-first +second):\n%s", diff)
			}
		}
	})
}

func TestForRefuses(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\n"
	for name, tc := range map[string]struct{ spec, without, want string }{
		"no binary":  {head, "etcd", "plan dev-main-0: the bundle has no etcd: run slipway bundle build"},
		"no plugin":  {head, "portmap", "plan dev-main-0: the bundle has no portmap: run slipway bundle build"},
		"no sandbox": {head, release.ImageName("pause"), "plan dev-main-0: the bundle has no image " + release.ImageName("pause") + ": run slipway bundle build"},
		"etcd apart": {
			head + "spec:\n  pools:\n  - {name: cp, roles: [control-plane, worker], count: 1}\n  - {name: e, roles: [etcd], machines: [{name: e, address: 192.0.2.9}]}\n", "",
			"plan dev-cp-0: etcd without a control plane on the same machine is not supported yet: remove the role etcd",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := completed(t, tc.spec)
			for _, pool := range c.Pools {
				n, err := config.ForNode(c, pool.Nodes[0].Name, machine.Facts{Address: netip.MustParseAddr("192.0.2.10"), UpstreamDNS: true})
				if err != nil {
					t.Fatal(err)
				}
				components := bundle()
				delete(components, tc.without)
				_, err = planner.For(n, components)
				if want := strings.Replace(tc.want, "dev-cp-0", pool.Nodes[0].Name, 1); err == nil || err.Error() != want {
					t.Errorf("error %v\nwant  %s", err, want)
				}
			}
		})
	}
}

// TestPodMTU: pods have the MTU of the spec, or else that of the node's default route, or else the kernel's.
func TestPodMTU(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\n"
	for name, tc := range map[string]struct {
		spec string
		fact int
		want string
	}{
		"spec":          {head + "spec: {networking: {mtu: 1400}}\n", 1500, `"mtu": 1400,`},
		"default route": {head, 1450, `"mtu": 1450,`},
		"unknown":       {head, 0, `"mtu": 0,`},
	} {
		facts := machine.Facts{Address: netip.MustParseAddr("192.0.2.10"), MTU: tc.fact}
		n, err := config.ForNode(completed(t, tc.spec), "dev-main-0", facts)
		if err != nil {
			t.Fatal(err)
		}
		p, err := planner.For(n, bundle())
		if err != nil {
			t.Fatal(err)
		}
		e, _ := p.Find("file//etc/cni/net.d/10-slipway.conflist")
		if file, ok := e.Item.(plan.File); !ok || !strings.Contains(file.Content, tc.want) {
			t.Errorf("%s: got %s, want %s", name, file.Content, tc.want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const shortest = "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\n"

func mustComplete(t *testing.T, rest string) Cluster {
	t.Helper()
	c, err := Complete("cluster.yaml", []byte(shortest+rest), "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestImmutable(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ kept, now, want string }{
		"nothing":               {},
		"what may change":       {now: "spec: {components: {kubelet: {config: {maxPods: 7}}}, controlPlane: {extraSANs: [a.example.org]}}\n"},
		"said as it was anyway": {now: "spec: {networking: {podCIDR: 10.244.0.0/16}, kubernetesVersion: \"1.36\", pools: [{name: main, count: 1}]}\n"},
		"everything at once": {
			now: "spec: {networking: {podCIDR: 10.32.0.0/14, nodePodPrefix: 25, serviceCIDR: 10.97.0.0/16, clusterDomain: shop.internal}, controlPlane: {form: StaticPods}}\n",
			want: `cluster dev exists, and this cannot be changed in it:
  spec.networking.podCIDR: 10.32.0.0/14, was 10.244.0.0/16
  spec.networking.nodePodPrefix: 25, was 24
  spec.networking.serviceCIDR: 10.97.0.0/16, was 10.96.0.0/16
  spec.networking.clusterDomain: shop.internal, was cluster.local
  spec.networking.dnsAddress: 10.97.0.10, was 10.96.0.10
  spec.controlPlane.form: StaticPods, was HostUnits
undo the change, or make a new cluster: slipway down --name dev`,
		},
		"where the data is": {
			now: "spec: {components: {etcd: {flags: {data-dir: /var/lib/etcd/other}}}}\n",
			want: `cluster dev exists, and this cannot be changed in it:
  spec.components.etcd.flags.data-dir: /var/lib/etcd/other, was /var/lib/etcd
undo the change, or make a new cluster: slipway down --name dev`,
		},
		"another address": {
			kept: "spec: {pools: [{name: p, machines: [{name: a, address: 10.89.0.20}]}]}\n", now: "spec: {pools: [{name: p, machines: [{name: a, address: 10.89.0.21}]}]}\n",
			want: `cluster dev exists, and this cannot be changed in it:
  spec.pools: machine a: address 10.89.0.21, was 10.89.0.20
undo the change, or make a new cluster: slipway down --name dev`,
		},
		"control planes before workers": {
			kept: "spec: {pools: [{name: c, roles: [control-plane]}, {name: w}]}\n", now: "spec: {pools: [{name: c, roles: [control-plane], count: 3}, {name: w, count: 2}]}\n",
		},
		"a larger pool": {kept: "spec: {pools: [{name: p, count: 1}]}\n", now: "spec: {pools: [{name: p, count: 3}]}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := &up{Launcher: &Launcher{Root: t.TempDir()}, cluster: mustComplete(t, tc.now)}
			if err := u.immutable(); err != nil {
				t.Errorf("a new cluster: %v", err)
			}
			if err := u.keepSpec(mustComplete(t, tc.kept)); err != nil {
				t.Fatal(err)
			}
			err := u.immutable()
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var bad *Error
			if !errors.As(err, &bad) || bad.Kind != InvalidSpec {
				t.Fatalf("error %v, want one of kind InvalidSpec", err)
			}
			if diff := cmp.Diff(tc.want, err.Error()); diff != "" {
				t.Errorf("refusal (-want +got):\n%s", diff)
			}
		})
	}
}

// A spec that was kept and cannot be read is no new cluster.
func TestImmutableUnreadable(t *testing.T) {
	t.Parallel()
	u := &up{Launcher: &Launcher{Root: t.TempDir()}, cluster: mustComplete(t, "")}
	if err := u.keepSpec(Cluster{Name: "dev", Spec: []byte("{")}); err != nil {
		t.Fatal(err)
	}
	if err := u.immutable(); err == nil || !strings.HasPrefix(err.Error(), "read the kept spec: ") {
		t.Errorf("error %v", err)
	}
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ spec, want string }{
		"one machine":    {},
		"three machines": {spec: "spec: {pools: [{name: p, count: 3}]}\n"},
		"static pods":    {spec: "spec: {controlPlane: {form: StaticPods}}\n"},
	} {
		u := &up{Launcher: &Launcher{}, cluster: mustComplete(t, tc.spec)}
		err := u.refuse()
		if (err == nil) != (tc.want == "") || err != nil && err.Error() != tc.want {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestCompleteRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ spec, version, want string }{
		"all problems at once": {
			"apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {nam: dev}\nspec: {colour: red}\n", "",
			"cluster.yaml:3:12: metadata.nam: ",
		},
		"a version that is not there": {shortest, "1.12", `find release "1.12": not in the catalogue, which has `},
	} {
		_, err := Complete("cluster.yaml", []byte(tc.spec), tc.version)
		var bad *Error
		if !errors.As(err, &bad) || bad.Kind != InvalidSpec || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
	_, err := Complete("cluster.yaml", []byte("apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {nam: dev}\nspec: {colour: red}\n"), "")
	if n := strings.Count(err.Error(), "cluster.yaml:"); n < 2 {
		t.Errorf("%d problems were told:\n%s", n, err)
	}
}

func TestVersionByAnyOfItsNames(t *testing.T) {
	t.Parallel()
	full := mustComplete(t, "").Release
	for _, version := range []string{"", full.Minor(), "v" + full.Minor(), full.Kubernetes, "v" + full.Kubernetes} {
		c, err := Complete("cluster.yaml", []byte(shortest), version)
		if err != nil || c.Release.Kubernetes != full.Kubernetes || c.Config.Minor != full.Minor() {
			t.Errorf("%q: %s, %v", version, c.Release.Kubernetes, err)
		}
	}
}

// Machines that a spec leaves out are noted: whether they may go, only the machines can say.
func TestMachinesLeftOut(t *testing.T) {
	t.Parallel()
	u := &up{Launcher: &Launcher{Root: t.TempDir()}, cluster: mustComplete(t, "spec: {pools: [{name: main, count: 3}]}\n")}
	if err := u.keepSpec(u.cluster); err != nil {
		t.Fatal(err)
	}
	u.cluster = mustComplete(t, "spec: {pools: [{name: main, count: 1}]}\n")
	if err := u.immutable(); err != nil {
		t.Fatal(err)
	}
	if want := []string{"dev-main-1", "dev-main-2"}; !slices.Equal(u.gone, want) {
		t.Errorf("left out are %v, want %v", u.gone, want)
	}
}

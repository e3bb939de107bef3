// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFind(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"1.36", "1.36.4", "v1.36.4"} {
		r, err := Find(version)
		if err != nil || r.Kubernetes != "1.36.4" {
			t.Errorf("Find(%q) = %s, %v", version, r.Kubernetes, err)
		}
	}
	_, err := Find("1.36.3")
	if err == nil || !strings.Contains(err.Error(), "1.36.4") {
		t.Errorf("Find(1.36.3) = %v, want an error that lists what exists", err)
	}
}

func TestBinaryByLink(t *testing.T) {
	t.Parallel()
	r := Default()
	for link, file := range map[string]string{"kubelet": "kube", "kube-apiserver": "kube", "etcd": "etcd"} {
		if b, err := r.Binary(link); err != nil || b.Name != file {
			t.Errorf("Binary(%q) = %q, %v; want %q", link, b.Name, err, file)
		}
	}
	if _, err := r.Binary("kubeadm"); err == nil {
		t.Error("Binary(kubeadm): want an error")
	}
}

// Every release has the images that nodes run.
func TestEveryReleaseHasImages(t *testing.T) {
	t.Parallel()
	for _, r := range Releases() {
		for _, binary := range []string{"pause", "coredns", "kube", "etcd"} {
			if r.ImageName(binary) == "" {
				t.Errorf("release %s has no image of %s", r.Kubernetes, binary)
			}
		}
	}
}

// Every source directory of a release has a module that requires the version in the
// release's entry.
func TestSourceRequiresVersion(t *testing.T) {
	t.Parallel()
	for _, r := range Releases() {
		for _, c := range r.Components {
			text, err := os.ReadFile(filepath.Join("../../../components", c.Source, "go.mod"))
			if err != nil {
				t.Errorf("%s %s: %v", r.Kubernetes, c.Name, err)
				continue
			}
			own := c.Name == "pause" || c.Name == "testpod"
			if !own && !strings.Contains(string(text), " v"+c.Version) {
				t.Errorf("%s: %s/go.mod does not require v%s", r.Kubernetes, c.Source, c.Version)
			}
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	good := `kubernetes: 1.36.4
components: [{name: a, version: "1", source: a, binaries: [{name: a, package: .}]}]
`
	if _, err := Parse([]byte(good)); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct{ add, want string }{
		"unknown field":    {"colour: red", "unknown field"},
		"unknown feature":  {"features: [Flying]", `feature "Flying": unknown`},
		"image of nothing": {`images: [{name: x, binary: b, entrypoint: [/b], user: "0:0"}]`, `binary "b": unknown`},
		"image user":       {`images: [{name: x, binary: a, entrypoint: [/a], user: root}]`, `user "root"`},
		"field twice":      {"kubernetes: 1.36.5", "already set"},
	}
	for name, c := range cases {
		_, err := Parse([]byte(good + c.add))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestMayUpgrade(t *testing.T) {
	t.Parallel()
	version := func(v string, next ...string) Release { return Release{Kubernetes: v, NextMinors: next} }
	old := version("1.36.4", "1.37")
	got := map[string]bool{}
	for _, v := range []string{"1.35.9", "1.36.3", "1.36.4", "1.36.9", "1.37.1", "1.38.0"} {
		got[v] = old.MayUpgradeTo(version(v))
	}
	want := map[string]bool{
		"1.35.9": false, "1.36.3": false, "1.36.4": true, "1.36.9": true, "1.37.1": true, "1.38.0": false,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Every release has a table for each program that takes flags from a spec.
func TestEveryReleaseHasFlags(t *testing.T) {
	t.Parallel()
	for _, r := range Releases() {
		for _, program := range []string{"containerd", "etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet"} {
			if r.Flags(program) == nil {
				t.Errorf("%s: no flags of %s: run go generate with SLIPWAY_TEST_BINARIES", r.Kubernetes, program)
			}
			if _, err := r.Binary(program); err != nil {
				t.Error(err)
			}
		}
		if len(r.Gates()) == 0 {
			t.Errorf("%s: no feature gates", r.Kubernetes)
		}
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	r := Default()
	flag := func(program, name string) Flag {
		f, _ := r.Flag(program, name)
		return f
	}
	for _, want := range []struct {
		program string
		flag    Flag
	}{
		{"kube-apiserver", Flag{Name: "audit-log-path", Kind: OneFlag}},
		{"kube-apiserver", Flag{Name: "service-account-issuer", Kind: ManyFlag}},
		{"kube-apiserver", Flag{Name: "kubelet-port", Deprecated: true}}, // not in --help
		{"kube-proxy", Flag{Name: "cleanup", Kind: BoolFlag, Exits: true}},
		{"kubelet", Flag{Name: "seccomp-default", Kind: BoolFlag}}, // --help gives it a type
		{"kubelet", Flag{Name: "max-pods", Kind: OneFlag, Value: IntValue, Deprecated: true}},
		{"etcd", Flag{Name: "memory-mlock", Kind: BoolFlag}},
		{"etcd", Flag{Name: "config-file"}},
		{"containerd", Flag{Name: "log-level", Kind: OneFlag}},
	} {
		if diff := cmp.Diff(want.flag, flag(want.program, want.flag.Name)); diff != "" {
			t.Errorf("%s --%s: %s", want.program, want.flag.Name, diff)
		}
	}
	if got := flag("kubelet", "pod-infra-container-image"); got.Name != "" {
		t.Errorf("kubelet knows a flag that it lost in 1.35: %v", got)
	}
	if (Release{Kubernetes: "1.36.3"}).Flags("kubelet") != nil {
		t.Error("a release takes the table of another patch")
	}
}

func TestGates(t *testing.T) {
	t.Parallel()
	gates := map[string]Gate{}
	for _, g := range Default().Gates() {
		gates[g.Name] = g
	}
	for name, want := range map[string]Gate{
		"AllAlpha":                    {Name: "AllAlpha"},
		"InPlacePodVerticalScaling":   {Name: "InPlacePodVerticalScaling", Locked: "true"}, // finished: not in --help
		"GitRepoVolumeDriver":         {Name: "GitRepoVolumeDriver", Locked: "false"},
		"LegacyServiceAccountTracker": {},
	} {
		if diff := cmp.Diff(want, gates[name]); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if g, ok := Default().Gate("AllAlpha"); !ok || g.Name != "AllAlpha" {
		t.Errorf("Gate(AllAlpha): got %v, %t", g, ok)
	}
	if g, ok := Default().Gate("AllAlphas"); ok {
		t.Errorf("Gate(AllAlphas): got %v, want none", g)
	}
}

func TestFlagTableReadsWhatItWrites(t *testing.T) {
	t.Parallel()
	want := FlagTable{
		Kubernetes: "1.0.0",
		Programs: map[string][]Flag{
			"a": {{Name: "b", Kind: BoolFlag, Deprecated: true, Exits: true}, {Name: "c"}},
			"b": {{Name: "b", Kind: ManyFlag}},
		},
		Gates: []Gate{{Name: "A", Locked: "false"}, {Name: "B"}},
	}
	got, err := ParseFlags(want.String())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	text, err := flagFiles.ReadFile("data/flags-1.36.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(text), tables()[Default().Kubernetes].String()); diff != "" {
		t.Errorf("the embedded file is not as genflags writes it: %s", diff)
	}
}

func TestParseFlagsRefuses(t *testing.T) {
	t.Parallel()
	good := []string{"release 1.0.0", "program a", "b bool", "c", "gates", "A locked=true"}
	if _, err := ParseFlags(strings.Join(good, "\n")); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		line int
		text string
		want string
	}{
		"no release":          {0, "", "no release"},
		"two releases":        {5, "release 1.0.1", `unknown word "1.0.1"`},
		"flag twice":          {3, "b", "b after b"},
		"flag of nothing":     {1, "", "b before any program"},
		"program twice":       {3, "program a", "program a again"},
		"word of a flag":      {2, "b boolean", `unknown word "boolean"`},
		"word of a gate":      {5, "A locked=maybe", `unknown word "locked=maybe"`},
		"two blanks":          {2, "b  bool", `unknown word ""`},
		"a flag out of order": {3, "a", "a after b"},
	} {
		lines := slices.Clone(good)
		lines[c.line] = c.text
		if _, err := ParseFlags(strings.Join(lines, "\n")); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestFields(t *testing.T) {
	t.Parallel()
	r := Default()
	for _, x := range []struct {
		program, field string
		want           FieldKind
	}{
		{"kubelet", "maxPods", IntField},
		{"kubelet", "authentication", ObjectField},
		{"kubelet", "authentication.webhook.cacheTTL", DurationField},
		{"kubelet", "evictionHard", AnyField},
		{"kubelet", "apiVersion", TextField},
		{"kubelet", "maxPodz", ""},
		{"kube-proxy", "nftables.masqueradeAll", BoolField},
		{"kube-scheduler", "enableProfiling", BoolField}, // of an inlined type
		{"etcd", "name", ""},
	} {
		if got := r.Fields(x.program)[x.field]; got != x.want {
			t.Errorf("%s %s: %q, want %q", x.program, x.field, got, x.want)
		}
	}
	if r.Fields("etcd") != nil {
		t.Error("etcd has a table")
	}
}

func TestFieldsAreCurrent(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "fields.txt")
	if text, err := exec.CommandContext(t.Context(), "go", "run", "./genfields", "../../../components/kubernetes-1.36", out).CombinedOutput(); err != nil {
		t.Skipf("the modules are not here: %s", text)
	}
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	want, err := fieldFiles.ReadFile("fields/1.36.txt")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("fields/1.36.txt is stale: run go generate ./internal/core/catalog")
	}
}

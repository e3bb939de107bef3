// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/outputdir"
	"github.com/slipway-project/slipway/internal/render"
	"github.com/slipway-project/slipway/internal/render/fleet"
	"github.com/slipway-project/slipway/internal/render/rendertest"
)

var update = flag.Bool("update", false, "rewrite testdata")

const twoPools = `apiVersion: slipway.dev/v1alpha1
kind: Cluster
metadata: {name: dev}
spec:
  pools:
  - {name: main, roles: [control-plane], count: 1}
  - {name: w, count: 1, machineLabels: {dev-w-0: {disk: ssd}}}
  units:
  - {name: web@, instances: [a, b], exec: [/usr/bin/web, "--name=%N", "100%%", "a b", "$HOME"], env: {A: "1 2"}, on: {disk: [ssd, nvme]}, conflicts: ["web@*", etcd]}
  - {name: side, exec: [/usr/bin/side], with: [web@a, kubelet], ready: {notify: true}, stopTimeout: 90s, directory: /srv}
  - {name: all, exec: [/usr/bin/all], global: true, facts: [DEFAULT_IPV4], ready: {http: "http://127.0.0.1:1/"}}
  - {name: pinned, exec: [/usr/bin/p], pin: dev-w-0, replaces: [side]}
`

func clusterPlan(t *testing.T, pool string) (plan.Plan, clusterdir.Cluster) {
	t.Helper()
	c, release, problems, err := compose.Cluster("spec.yaml", []byte(twoPools), compose.Options{})
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	c = compose.Place(c, nil)
	have := planner.Components{}
	add := func(name string) { have[name] = fmt.Sprintf("sha256:%064x", len(have)+1) }
	for _, x := range release.Components {
		for _, b := range x.Binaries {
			add(b.Name)
		}
	}
	for _, i := range release.Images() {
		add(i.Name)
	}
	_, p, err := compose.Node(c, admission.Node{Name: "dev-" + pool + "-0", Pool: pool, Index: 0, Address: netip.MustParseAddr("192.0.2.7")}, have)
	if err != nil {
		t.Fatal(err)
	}
	return p, clusterdir.Cluster{Name: "dev", Config: c}
}

// everyKind has each of the nine kinds.
func everyKind() plan.Plan {
	var b plan.Builder
	dir := b.Add(plan.Dir{Path: "/etc/x", Mode: 0o700})
	file := b.Add(plan.File{Path: "/etc/x/f", Mode: 0o600, Content: "content\n"}, dir)
	b.Add(plan.File{Path: "/etc/x/secret", Mode: 0o600, Content: "{{s}}", Fill: map[string]string{"{{s}}": "/k"}}, dir)
	bin := b.Add(plan.Artifact{Path: "/opt/bin/x", Digest: "sha256:" + strings.Repeat("0a", 32), Name: "x v1"})
	b.Add(plan.Mount{Target: "/data", Source: "/dev/x", Type: "ext4"})
	b.Add(plan.Cert{Want: pki.Want{Name: "leaf"}})
	b.Add(plan.Kubeconfig{Path: "/etc/k.conf"})
	gate := b.Add(plan.Precondition{Name: "quorum"})
	first := b.Add(plan.Unit{Name: "first", Args: []string{"/opt/bin/x"}, Oneshot: true}, file, bin)
	b.Add(plan.Unit{Name: "kube-u", Args: []string{"/opt/bin/x", "--a=50%", "b c"}, Env: []string{"A=b c"}, KillChildren: true}, first, gate, bin)
	b.Add(plan.StaticPod{Path: "/etc/kubernetes/manifests/p.yaml", Manifest: "kind: Pod\n"})
	return b.Plan("dev", "n1", "1.36.4")
}

func TestGolden(t *testing.T) {
	t.Parallel()
	control, c := clusterPlan(t, "main")
	worker, _ := clusterPlan(t, "w")
	for name, tc := range map[string]struct {
		plan plan.Plan
		own  []fleet.Unit
	}{"control-plane": {control, c.Config.Units}, "worker": {worker, c.Config.Units}, "worker-alone": {worker, nil}, "every-kind": {everyKind(), nil}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := fleet.With(tc.plan, tc.own)
			if err != nil {
				t.Fatal(err)
			}
			rendertest.Golden(t, *update, name+".txtar", string(archive(r)))
		})
	}
}

func archive(r render.Rendered) []byte {
	var a txtar.Archive
	for _, f := range r.Files {
		a.Files = append(a.Files, txtar.File{Name: fmt.Sprintf("%s %04o", f.Path, f.Mode), Data: f.Content})
	}
	var left strings.Builder
	for _, l := range r.Omitted {
		fmt.Fprintf(&left, "%s: %s\n", l.Ref, l.Reason)
	}
	a.Files = append(a.Files, txtar.File{Name: "LEFT", Data: []byte(left.String())})
	return txtar.Format(&a)
}

// TestRoundTrip: Decode is the inverse of Encode.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	_, c := clusterPlan(t, "main")
	units := c.Config.Units
	if len(units) != 5 {
		t.Fatalf("got %d units", len(units))
	}
	for _, u := range units {
		u.Placed = nil // fleet places it
		text, err := fleet.Encode(u)
		if err != nil {
			t.Fatal(err)
		}
		got, notes, err := fleet.Decode("units/"+u.Name+".service", text)
		if err != nil || len(notes) > 0 {
			t.Errorf("%s: %v, notes %v\n%s", u.Name, err, notes, text)
		}
		if diff := cmp.Diff(u, got); diff != "" {
			t.Errorf("%s (-written +read):\n%s\n%s", u.Name, diff, text)
		}
	}
}

func FuzzRoundTrip(f *testing.F) {
	f.Add("--a=$x", "b 'c' \"d\" \\ %i", "disk", "v 1")
	f.Fuzz(func(t *testing.T, arg, env, key, value string) {
		if strings.ContainsAny(arg+env+key+value, "\x00\r\x0b\x0c") || strings.Contains(key, "=") || key == "" || !asciiOnly(arg+env+key+value) {
			return
		}
		u := fleet.Unit{Exec: []string{"/bin/x", arg}, Env: map[string]string{"A": env}}
		u.Name, u.On = "u@1", map[string][]string{"k" + key: {value}}
		text, err := fleet.Encode(u)
		if err != nil {
			return
		}
		got, _, err := fleet.Decode("u@1.service", text)
		if diff := cmp.Diff(u, got); diff != "" || err != nil {
			t.Errorf("%v (-written +read):\n%s\n%s", err, diff, text)
		}
	})
}

func asciiOnly(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > '~' || r < ' ' && r != '\n' && r != '\t' })
}

// TestFetch runs the commands of a unit with a real shell. Instead of a web server, curl reads file: URLs.
func TestFetch(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"curl", "sha256sum"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("there is no %s here", program)
		}
	}
	dir := t.TempDir()
	var b plan.Builder
	at := filepath.Join(dir, "place", "x's")
	b.Add(plan.Unit{Name: "u", Args: []string{"/bin/true"}}, b.Add(plan.File{Path: at, Mode: 0o755, Content: "new\n"}))
	r, err := fleet.With(b.Plan("c", "n", "r"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := outputdir.Write(filepath.Join(dir, "out"), r.Files); err != nil {
		t.Fatal(err)
	}
	var script []string // the commands of the unit
	for _, f := range r.Files {
		if strings.HasSuffix(f.Path, ".service") {
			u, _, err := fleet.Decode(f.Path, string(f.Content))
			if err != nil {
				t.Fatal(err)
			}
			script = u.Exec
		}
	}
	run := func(store string) error {
		cmd := exec.CommandContext(t.Context(), script[0], script[1:]...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "SLIPWAY_STORE=" + store}
		return cmd.Run()
	}
	content := func() string {
		text, _ := os.ReadFile(at)
		return string(text)
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte("old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(dir, "bad", "sha256")
	if err := os.MkdirAll(bad, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Files {
		if name, ok := strings.CutPrefix(f.Path, "blobs/sha256/"); ok {
			if err := os.WriteFile(filepath.Join(bad, name), []byte("forged\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, store := range map[string]string{"nothing": "", "away": "file://" + dir + "/none", "forged": "file://" + filepath.Dir(bad)} {
		if err := run(store); err == nil || content() != "old\n" {
			t.Errorf("%s: got %v and file content %q", name, err, content())
		}
	}
	if err := run("file://" + filepath.Join(dir, "out", "blobs")); err != nil || content() != "new\n" {
		t.Errorf("got %v and file content %q\n%s", err, content(), script)
	}
	if info, err := os.Stat(at); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode: got %v, %v", info.Mode(), err)
	}
	if err := run(""); err != nil { // an existing file needs no download
		t.Errorf("existing file: got %v", err)
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	var b plan.Builder
	b.Add(plan.Unit{Name: "u", Args: []string{"/x"}}, b.Add(plan.Artifact{Path: "/x", Digest: "not-built"}))
	if _, err := fleet.With(b.Plan("c", "n", "r"), nil); err == nil || !strings.Contains(err.Error(), "slipway bundle build") {
		t.Errorf("artifact without a digest: got %v", err)
	}
	u := fleet.Unit{Exec: []string{"/x"}}
	u.Name, u.Global, u.With = "u", true, []string{"etcd"}
	if _, err := fleet.Encode(u); err == nil || !strings.Contains(err.Error(), "fleet ignores MachineOf in global units") {
		t.Errorf("with in a global unit: got %v", err)
	}
}

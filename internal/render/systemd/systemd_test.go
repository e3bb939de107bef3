// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/render/rendertest"
	"github.com/slipway-project/slipway/internal/render/systemd"
)

// verify checks unit files with systemd-analyze. It only warns about lines that it ignores, so any output is
// an error.
func verify(t *testing.T, dir string, units ...string) {
	t.Helper()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not on this machine (package systemd): unit files are not checked by systemd itself")
	}
	cmd := exec.CommandContext(t.Context(), analyze, append([]string{"verify", "--man=no", "--recursive-errors=no"}, units...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":")
	out, err := cmd.CombinedOutput()
	if err != nil || len(strings.TrimSpace(string(out))) > 0 {
		t.Errorf("systemd-analyze verify: %v: %s", err, out)
	}
}

func TestAgentServiceIsUnderstood(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, systemd.AgentUnit)
	if err := os.WriteFile(file, systemd.AgentService("/bin/true"), 0o600); err != nil {
		t.Fatal(err)
	}
	verify(t, dir, file)
}

func TestAgentServiceNamesItsProgram(t *testing.T) {
	t.Parallel()
	if text := string(systemd.AgentService("/opt/my tools/slip%way")); !strings.Contains(text, `ExecStart="/opt/my tools/slip%%way" agent`) {
		t.Errorf("program not found in the text: %s", text)
	}
}

var update = flag.Bool("update", false, "rewrite the golden files")

// everyKind is a plan with every kind of item, and each setting of a unit at least once.
func everyKind() plan.Plan {
	var b plan.Builder
	dir := b.Add(plan.Dir{Path: "/var/lib/my data/100%", Mode: 0o700, Data: true})
	conf := b.Add(plan.File{Path: "/etc/kubernetes/kubelet.yaml", Mode: 0o600, Content: "kind: KubeletConfiguration\n"})
	b.Add(plan.File{Path: "/etc/kubernetes/encryption.yaml", Mode: 0o600, Content: "key: {{k}}\n", Fill: map[string]string{"{{k}}": "/k"}})
	bin := b.Add(plan.Artifact{Path: "/opt/slipway/bin/etcd", Digest: "sha256:" + strings.Repeat("0", 64), Name: "etcd v3.6.0"})
	mount := b.Add(plan.Mount{Target: "/var/lib/my-etcd", Source: "/dev/disk/by-label/etcd", Type: "ext4", Options: []string{"noatime", "nodev"}})
	cert := b.Add(plan.Cert{Want: pki.Want{Name: "ca", Kind: pki.CA, KeyPath: "/etc/kubernetes/pki/ca.key"}})
	b.Add(plan.Kubeconfig{Path: "/etc/kubernetes/admin.conf", Cluster: "c", User: "admin", Server: "https://127.0.0.1:6443"}, cert)
	etcd := b.Add(plan.Unit{
		Name: "etcd", Args: []string{"/bin/true", "--name=a b", "--cost=100%", "--literal=$HOME", ""},
		Env: []string{"A=two words", "B=50%"}, EnvFile: "/var/lib/slipway/state/etcd-permit", Dir: "/var/lib/my data/100%",
		Ready:     plan.Probe{Kind: plan.ProbeHTTP, URL: "http://127.0.0.1:2381/readyz"},
		DataGuard: plan.DataGuard{Mark: "/var/lib/slipway/state/mark", Data: "/var/lib/my-etcd/member"},
		OOMScore:  -997, StopTimeout: 2500 * time.Millisecond,
	}, dir, bin, mount, cert)
	gate := b.Add(plan.Precondition{Name: "etcd-voter", Provider: "a control plane", Ready: plan.Probe{Kind: plan.ProbeFile, Path: "/voter"}}, etcd)
	b.Add(plan.Unit{Name: "kube-apiserver", Args: []string{"/bin/true"}, Ready: plan.Probe{Kind: plan.ProbeTCP}, KillChildren: true}, gate)
	runtime := b.Add(plan.Unit{Name: "containerd", Args: []string{"/bin/true"}, Ready: plan.Probe{Kind: plan.ProbeNotify}}, conf)
	image := b.Add(plan.Unit{Name: "image-pause", Args: []string{"/bin/true"}, Oneshot: true}, runtime)
	b.Add(plan.Unit{Name: "kubelet", Args: []string{"/bin/true"}, OOMScore: -999}, conf, image)
	b.Add(plan.StaticPod{Name: "web", Path: "/etc/kubernetes/manifests/web.yaml", Manifest: "kind: Pod\n"}, conf)
	return b.Plan("c", "n1", "v1.36.4")
}

func TestRenderOfEveryKind(t *testing.T) {
	t.Parallel()
	r, err := systemd.Render(everyKind())
	if err != nil {
		t.Fatal(err)
	}
	rendertest.Golden(t, *update, "every-kind.txt", rendertest.Text(r))
}

func TestRenderedUnitsAreUnderstood(t *testing.T) {
	t.Parallel()
	r, err := systemd.Render(everyKind())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var units []string
	for _, f := range r.Files {
		if name, ok := strings.CutPrefix(f.Path, "etc/systemd/system/"); ok {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, f.Content, 0o600); err != nil {
				t.Fatal(err)
			}
			units = append(units, path)
		}
	}
	if len(units) < 7 {
		t.Fatalf("got %d unit files: is the directory wrong?", len(units))
	}
	verify(t, dir, units...)
}

func TestHandlesAreUnderstood(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var paths []string
	for name, content := range map[string][]byte{
		systemd.NodeTarget:    systemd.NodeTargetUnit([]string{"slipway-a.service"}),
		systemd.ClusterTarget: systemd.ClusterTargetUnit(systemd.NodeTarget),
		systemd.Slice:         systemd.SliceUnit(),
		"slipway-a.service": systemd.Service(plan.Unit{Name: "a", Args: []string{"/bin/true"}}, systemd.Options{
			LogDir: "/var/log/slip%way", Before: []string{"/bin/true", "x y"}, Pause: "100ms",
		}),
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	verify(t, dir, paths...)
}

// After finds units through other items and through oneshot units.
func TestAfterSeesThroughWhatIsNoUnit(t *testing.T) {
	t.Parallel()
	p := everyKind()
	find := func(r plan.Ref) (plan.Entry, bool) { return p.Find(r.String()) }
	for unit, want := range map[string][]string{"kube-apiserver": {"etcd"}, "kubelet": {"containerd"}, "etcd": nil} {
		e, ok := p.Find("unit/" + unit)
		if !ok {
			t.Fatal(unit)
		}
		if diff := cmp.Diff(want, systemd.After(e, find)); diff != "" {
			t.Errorf("%s: %s", unit, diff)
		}
	}
}

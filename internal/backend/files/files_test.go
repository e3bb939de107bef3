// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/slipway-project/slipway/internal/backend/probe"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// keys is a Keys with fixed results.
type keys struct {
	ok, exists bool
	detail     string
	err        error
	ensured    []string
}

func (k *keys) Check(context.Context, pki.Want) (ok, exists bool, detail string, err error) {
	return k.ok, k.exists, k.detail, k.err
}

func (k *keys) Ensure(_ context.Context, w pki.Want) error {
	k.ensured = append(k.ensured, w.Name)
	return k.err
}

func newHost(t *testing.T, dir string, k Keys) *Host {
	t.Helper()
	p := probe.New()
	t.Cleanup(p.Close)
	h, err := New(Config{Store: filepath.Join(dir, "store"), Verified: filepath.Join(dir, "run", "verified"), Keys: k, Probe: p})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func entry(it plan.Item) plan.Entry { return plan.Entry{Ref: plan.RefOf(it), Item: it} }

func make1(t *testing.T, h *Host, it plan.Item) {
	t.Helper()
	if err := h.Do(t.Context(), plan.Step{Verb: plan.Create, Ref: plan.RefOf(it)}, entry(it)); err != nil {
		t.Fatal(err)
	}
	if err := h.Await(t.Context(), entry(it), func(string) {}); err != nil {
		t.Fatal(err)
	}
}

func wantState(t *testing.T, h *Host, it plan.Item, want plan.State) {
	t.Helper()
	have, err := h.Observe(t.Context(), entry(it))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("%s: %s", plan.RefOf(it), diff)
	}
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
	return path
}

// Whatever exists at the path of a file is replaced or refused, and links are never followed.
func TestFileMeetsOtherThings(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		put        func(path, target string) error
		wantDetail string
		wantErr    string
	}{
		"symlink to a file":   {func(p, target string) error { return os.Symlink(target, p) }, "it is a symlink, want a file", ""},
		"symlink to nothing":  {func(p, target string) error { return os.Symlink(target+"x", p) }, "it is a symlink, want a file", ""},
		"directory":           {func(p, _ string) error { return os.Mkdir(p, 0o755) }, "it is a directory, want a file", "it is a directory"},
		"file of another one": {func(p, _ string) error { return errors.Join(os.WriteFile(p, []byte("x"), 0o600), os.Chown(p, 1, -1)) }, "owner 1, want 0", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.Contains(tt.wantDetail, "owner") && os.Geteuid() != 0 {
				t.Skip("only root can change the owner of a file")
			}
			dir := t.TempDir()
			target := write(t, filepath.Join(dir, "target"), "theirs")
			f := plan.File{Path: filepath.Join(dir, "f"), Mode: 0o600, Content: "x"}
			if err := tt.put(f.Path, target); err != nil {
				t.Fatal(err)
			}
			h := newHost(t, dir, nil)
			wantState(t, h, f, plan.State{Existence: plan.Present, Detail: tt.wantDetail})
			err := h.Do(t.Context(), plan.Step{Verb: plan.Replace}, entry(f))
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("got error %v, want %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			wantState(t, h, f, right())
			if got, _ := os.ReadFile(target); string(got) != "theirs" {
				t.Errorf("the target was changed to %q", got)
			}
		})
	}
}

func TestRemoveRefusesWhatWasNotMade(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target := write(t, filepath.Join(dir, "target"), "theirs")
	link, directory := filepath.Join(dir, "link"), filepath.Join(dir, "directory")
	if err := errors.Join(os.Symlink(target, link), os.Mkdir(directory, 0o755)); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, dir, nil)
	for name, it := range map[string]plan.Item{
		"file that is a symlink":    plan.File{Path: link},
		"file that is a directory":  plan.File{Path: directory},
		"artifact that is a file":   plan.Artifact{Path: target},
		"static pod that is a link": plan.StaticPod{Name: "link", Path: link},
		"key that is a directory":   plan.Cert{Want: pki.Want{Kind: pki.Leaf, CertPath: directory, KeyPath: directory}},
		"kubeconfig that is a link": plan.Kubeconfig{Path: link},
	} {
		if err := h.Do(t.Context(), plan.Step{Verb: plan.Remove}, entry(it)); err == nil {
			t.Errorf("%s: the item was removed", name)
		}
	}
	for _, path := range []string{target, link, directory} {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
	authority := plan.Cert{Want: pki.Want{Kind: pki.CA, CertPath: target, KeyPath: target}}
	if err := h.Do(t.Context(), plan.Step{Verb: plan.Remove}, entry(authority)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(target); err != nil {
		t.Error("the files of a CA were removed")
	}
}

func TestFillIsSecret(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := newHost(t, dir, nil)
	secret := filepath.Join(dir, "secret")
	f := plan.File{Path: filepath.Join(dir, "enc.yaml"), Mode: 0o600, Content: "key: @KEY@\nagain: @KEY@\n", Fill: map[string]string{"@KEY@": secret}}
	wantState(t, h, f, absent())
	if err := h.Do(t.Context(), plan.Step{Verb: plan.Create}, entry(f)); err == nil {
		t.Error("a file was made without its secret")
	}
	wantState(t, h, f, absent())
	write(t, secret, "\x00hunter2")
	make1(t, h, f)
	coded := base64.StdEncoding.EncodeToString([]byte("\x00hunter2"))
	if got, _ := os.ReadFile(f.Path); string(got) != "key: "+coded+"\nagain: "+coded+"\n" {
		t.Errorf("got content %q", got)
	}
	write(t, secret, "other")
	wantState(t, h, f, plan.State{Existence: plan.Present, Detail: "its content differs"})
	if err := os.Remove(secret); err != nil {
		t.Fatal(err)
	}
	if s, err := h.Observe(t.Context(), entry(f)); err == nil || s.Existence != plan.Unknown {
		t.Errorf("without the secret: got %+v, %v, want unknown", s, err)
	}
}

func TestStaticPodAppearsWhole(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := newHost(t, dir, nil)
	p := plan.StaticPod{Name: "web", Path: filepath.Join(dir, "manifests", "web.yaml"), Manifest: "kind: Pod\n"}
	wantState(t, h, p, absent())
	make1(t, h, p)
	changed := p
	changed.Manifest = "kind: Pod\n#\n"
	make1(t, h, changed)
	wantState(t, h, p, plan.State{Existence: plan.Present, Detail: "its content differs from line 1 onwards"})
	make1(t, h, p)
	for _, directory := range []string{dir, filepath.Dir(p.Path)} {
		entries, err := os.ReadDir(directory)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") {
				t.Errorf("temporary file left behind: %s", e.Name())
			}
		}
	}
}

func TestCert(t *testing.T) {
	t.Parallel()
	c := plan.Cert{Want: pki.Want{Name: "apiserver", Kind: pki.Leaf}}
	tests := map[string]struct {
		keys keys
		want plan.State
	}{
		"absent":     {keys{}, absent()},
		"unfit":      {keys{exists: true, detail: "lacks SAN 10.96.0.1"}, wrong("lacks SAN 10.96.0.1")},
		"right":      {keys{exists: true, ok: true}, right()},
		"renewed on": {keys{exists: true, ok: true, detail: "renewed on Monday"}, plan.State{Existence: plan.Present, Matches: true, Ready: true, Detail: "renewed on Monday"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantState(t, newHost(t, t.TempDir(), &tt.keys), c, tt.want)
		})
	}
	k := &keys{err: errors.New("disk is gone")}
	h := newHost(t, t.TempDir(), k)
	if s, err := h.Observe(t.Context(), entry(c)); err == nil || s.Existence != plan.Unknown {
		t.Errorf("got %+v, %v; want unknown", s, err)
	}
	k.err = nil
	if err := h.Do(t.Context(), plan.Step{Verb: plan.Create}, entry(c)); err != nil || len(k.ensured) != 1 {
		t.Errorf("got ensured %v, %v", k.ensured, err)
	}
}

func TestKubeconfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := newHost(t, dir, nil)
	k := plan.Kubeconfig{
		Path: filepath.Join(dir, "admin.conf"), Cluster: "dev", User: "admin", Server: "https://[::1]:6443",
		CAFile: write(t, filepath.Join(dir, "ca.crt"), "CA"), CertFile: write(t, filepath.Join(dir, "a.crt"), "CERT"), KeyFile: write(t, filepath.Join(dir, "a: key"), "KEY"),
	}
	type object = map[string]any
	for name, tt := range map[string]struct {
		embed         bool
		cluster, user object
	}{
		"by reference": {false, object{"certificate-authority": k.CAFile}, object{"client-certificate": k.CertFile, "client-key": k.KeyFile}},
		"embedded":     {true, object{"certificate-authority-data": "Q0E="}, object{"client-certificate-data": "Q0VSVA==", "client-key-data": "S0VZ"}},
	} {
		k.Embed = tt.embed
		make1(t, h, k)
		data, err := os.ReadFile(k.Path)
		if err != nil {
			t.Fatal(err)
		}
		var got object
		if err := yaml.UnmarshalStrict(data, &got); err != nil {
			t.Fatal(err)
		}
		tt.cluster["server"] = k.Server
		want := object{
			"apiVersion": "v1", "kind": "Config", "current-context": "admin@dev",
			"clusters": []any{object{"name": "dev", "cluster": tt.cluster}},
			"contexts": []any{object{"name": "admin@dev", "context": object{"cluster": "dev", "user": "admin"}}},
			"users":    []any{object{"name": "admin", "user": tt.user}},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if info, err := os.Stat(k.Path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: got mode %v, %v", name, info.Mode(), err)
		}
		wantState(t, h, k, right())
	}
}

func put(t *testing.T, dir, content string) (digest, blob string) {
	t.Helper()
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(content)))
	return "sha256:" + sum, write(t, filepath.Join(dir, "store", "blobs", "sha256", sum), content)
}

// A missing or damaged blob is fetched, and the fetched blob is verified.
func TestArtifactIsFetched(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(blob string) error{
		"missing": os.Remove,
		"damaged": func(blob string) error { return os.WriteFile(blob, []byte("binarx"), 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			digest, blob := put(t, dir, "binary")
			if err := spoil(blob); err != nil {
				t.Fatal(err)
			}
			h := newHost(t, dir, nil)
			a := plan.Artifact{Path: filepath.Join(dir, "bin", "kube"), Digest: digest, Name: "kube v1"}
			asked, answer := 0, errors.New("no control plane has it")
			h.blobs.fetch = func(_ context.Context, d string) error {
				asked++
				if d != digest {
					t.Errorf("got a request for %s", d)
				}
				return answer
			}
			err := h.Do(t.Context(), plan.Step{Verb: plan.Create}, entry(a))
			if !errors.Is(err, answer) || !strings.Contains(err.Error(), remedy) {
				t.Errorf("failed fetch: got %v", err)
			}
			answer = nil // but nothing came
			if err := h.Do(t.Context(), plan.Step{Verb: plan.Create}, entry(a)); err == nil || !strings.Contains(err.Error(), remedy) {
				t.Errorf("fetch without result: got %v", err)
			}
			h.blobs.fetch = func(context.Context, string) error {
				asked++
				put(t, dir, "binary")
				return nil
			}
			make1(t, h, a)
			wantState(t, h, a, right())
			if asked != 3 {
				t.Errorf("got %d fetches, want 3", asked)
			}
		})
	}
}

func TestArtifact(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := newHost(t, dir, nil)
	digest, blob := put(t, dir, "binary")
	a := plan.Artifact{Path: filepath.Join(dir, "bin", "kube"), Digest: digest, Name: "kube v1"}
	wantState(t, h, a, absent())
	make1(t, h, a)
	if got, err := os.ReadFile(a.Path); err != nil || string(got) != "binary" {
		t.Errorf("got %q, %v", got, err)
	}
	h = newHost(t, dir, nil) // another agent of the same boot
	wantState(t, h, a, right())

	h.blobs.verified = map[string]stamp{} // another boot
	wantState(t, h, a, wrong("it has not been verified since boot"))
	make1(t, h, a)

	if err := os.WriteFile(blob, []byte("binarx"), 0o755); err != nil {
		t.Fatal(err)
	}
	wantState(t, h, a, wrong(digest+" has changed since it was verified"))
	err := h.Do(t.Context(), plan.Step{Verb: plan.Replace}, entry(a))
	if err == nil || !strings.Contains(err.Error(), "verify artifact kube v1: "+digest+" is damaged") || !strings.Contains(err.Error(), remedy) {
		t.Errorf("damaged blob: got %v", err)
	}
	if err := os.Remove(blob); err != nil {
		t.Fatal(err)
	}
	wantState(t, h, a, wrong(digest+" is missing from the store"))
	err = h.Do(t.Context(), plan.Step{Verb: plan.Replace}, entry(a))
	if err == nil || !strings.Contains(err.Error(), "not in the store: "+remedy) {
		t.Errorf("missing blob: got %v", err)
	}
	put(t, dir, "binary")
	make1(t, h, a)
	next := a
	next.Digest, _ = put(t, dir, "newer binary")
	wantState(t, h, next, wrong("it is "+strings.TrimPrefix(digest, "sha256:")+", want "+next.Digest))
	make1(t, h, next)
	for _, bad := range []string{"", "sha256:", "sha256:../../../etc/passwd", "md5:00", strings.ToUpper(digest)} {
		a.Digest = bad
		if _, err := h.Observe(t.Context(), entry(a)); err == nil {
			t.Errorf("digest %q was accepted", bad)
		}
	}
}

func TestFingerprintFollowsContent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := newHost(t, dir, nil)
	cert, key := filepath.Join(dir, "c"), filepath.Join(dir, "k")
	digest, _ := put(t, dir, "v1")
	for name, tt := range map[string]struct {
		item   plan.Item
		change []func() error
	}{
		"file": {plan.File{Path: cert}, []func() error{func() error { return os.WriteFile(cert, []byte("1"), 0o600) }, func() error { return os.WriteFile(cert, []byte("2"), 0o600) }}},
		"cert": {plan.Cert{Want: pki.Want{CertPath: cert, KeyPath: key}}, []func() error{func() error { return os.WriteFile(key, []byte("1"), 0o600) }, func() error { return os.WriteFile(cert, []byte("3"), 0o600) }}},
		"artifact": {plan.Artifact{Path: filepath.Join(dir, "a"), Digest: digest}, []func() error{func() error {
			return os.Symlink(filepath.Join(dir, "store", strings.TrimPrefix(digest, "sha256:")), filepath.Join(dir, "a"))
		}}},
	} {
		seen := map[string]bool{}
		look := func() {
			sum, err := h.Fingerprint(tt.item)
			again, _ := h.Fingerprint(tt.item)
			if err != nil || seen[sum] || sum != again {
				t.Errorf("%s: got %q then %q, %v; want a different fingerprint for each content", name, sum, again, err)
			}
			seen[sum] = true
		}
		look()
		for _, change := range tt.change {
			if err := change(); err != nil {
				t.Fatal(err)
			}
			look()
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/pki"
)

// Check reports why a leaf differs, and Ensure issues it again.
func TestLeafHeals(t *testing.T) {
	t.Parallel()
	change := func(f func(w *pki.Want)) func(*testing.T, string, *pki.Want) {
		return func(_ *testing.T, _ string, w *pki.Want) { f(w) }
	}
	tests := map[string]struct {
		tamper     func(t *testing.T, dir string, w *pki.Want)
		after      time.Duration
		wantDetail string
		wantKey    string // same or new
	}{
		"other name":          {change(func(w *pki.Want) { w.CommonName = "x" }), 0, `its name is "apiserver", want "x"`, "new"},
		"other organization":  {change(func(w *pki.Want) { w.Organizations = []string{"g"} }), 0, "its organizations lack g", "new"},
		"one name more":       {change(func(w *pki.Want) { w.DNSNames = append(w.DNSNames, "api.dev") }), 0, "its DNS names lack api.dev", "new"},
		"one name less":       {change(func(w *pki.Want) { w.DNSNames = w.DNSNames[:1] }), 0, "its DNS names have the extra localhost", "new"},
		"other address":       {change(func(w *pki.Want) { w.Addresses[0] = netip.MustParseAddr("10.0.0.9") }), 0, "its addresses lack 10.0.0.9 and have the extra 127.0.0.1", "new"},
		"other usage":         {change(func(w *pki.Want) { w.Usages = []pki.Usage{pki.ClientAuth} }), 0, "its usages lack client auth and have the extra server auth", "new"},
		"shorter life":        {change(func(w *pki.Want) { w.Lifetime = time.Hour }), 0, "its lifetime is longer than 1h0m0s", "new"},
		"two thirds":          {change(func(*pki.Want) {}), year * 2 / 3, "renewal due since 2027-01-", "new"},
		"expired":             {change(func(*pki.Want) {}), year + time.Second, "it expired at 2027-06-01T12:00:00Z", "new"},
		"certificate gone":    {remove("apiserver.crt"), 0, "apiserver.crt does not exist, but its key", "same"},
		"key gone":            {remove("apiserver.key"), 0, "apiserver.key does not exist, but its certificate", "new"},
		"certificate empty":   {write("apiserver.crt", 0o644, ""), 0, "apiserver.crt is damaged: it contains no PEM certificate", "same"},
		"certificate garbled": {write("apiserver.crt", 0o644, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), 0, "its certificate cannot be parsed", "same"},
		"key empty":           {write("apiserver.key", 0o600, ""), 0, "apiserver.key is damaged: it contains no readable private key", "new"},
		"key of another":      {copyFile("ca.key", "apiserver.key"), 0, "does not belong to the certificate", "same"},
		"key open":            {chmod("apiserver.key", 0o640), 0, "apiserver.key (mode 0640, want 0600)", "new"},
		"signed by another CA": {func(t *testing.T, dir string, w *pki.Want) {
			other := authority(dir, "other")
			ensure(t, at(start), other)
			w.SignerCert, w.SignerKey = other.CertPath, other.KeyPath
		}, 0, "it is not signed by", "new"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			ca := authority(dir, "ca")
			w := server(dir, ca)
			ensure(t, at(start), ca, w)
			tt.tamper(t, dir, &w)
			before, _ := os.ReadFile(w.KeyPath)
			l := at(start.Add(tt.after))
			ok, exists, detail, err := l.Check(t.Context(), w)
			if ok || !exists || err != nil || !strings.Contains(detail, tt.wantDetail) {
				t.Errorf("check: got ok=%v, exists=%v, detail %q, error %v, want detail %q", ok, exists, detail, err, tt.wantDetail)
			}
			ensure(t, l, w)
			if ok, _, detail, err := l.Check(t.Context(), w); !ok || detail != "" || err != nil {
				t.Errorf("check after Ensure: got ok=%v, detail %q, error %v", ok, detail, err)
			}
			after, _ := os.ReadFile(w.KeyPath)
			if same := slices.Equal(before, after); same != (tt.wantKey == "same") {
				t.Errorf("same key: got %v, want %s", same, tt.wantKey)
			}
		})
	}
}

// Ensure refuses to replace what cannot be created again. The error names the files, and they do not change.
func TestRefusals(t *testing.T) {
	t.Parallel()
	none := func(*testing.T, string, *pki.Want) {}
	const restore = "Only if this cluster has never run, remove both files"
	tests := map[string]struct {
		want   func(dir string) pki.Want
		tamper func(t *testing.T, dir string, w *pki.Want)
		now    time.Time
		wantIn []string
	}{
		"CA key gone":           {caOf, remove("ca.key"), start, []string{"ca.key does not exist", "ca.crt", restore}},
		"CA certificate gone":   {caOf, remove("ca.crt"), start, []string{"ca.crt does not exist", "ca.key", restore}},
		"CA key empty":          {caOf, write("ca.key", 0o600, ""), start, []string{"ca.key is damaged", restore}},
		"CA certificate empty":  {caOf, write("ca.crt", 0o644, ""), start, []string{"ca.crt is damaged", restore}},
		"CA key of another":     {caOf, copyFile("apiserver.key", "ca.key"), start, []string{"does not belong to", restore}},
		"CA key open":           {caOf, chmod("ca.key", 0o644), start, []string{"other users may read", "set its mode to 0600"}},
		"CA of another name":    {caOf, func(_ *testing.T, _ string, w *pki.Want) { w.CommonName = "x" }, start, []string{`its name is "dev ca", want "x"`}},
		"CA is a leaf":          {caOf, both(copyFile("apiserver.key", "ca.key"), copyFile("apiserver.crt", "ca.crt")), start, []string{"is not a certificate authority"}},
		"CA expired":            {caOf, none, start.Add(11 * year), []string{"ca.crt expired at 2036-05-29T12:00:00Z", "set the clock"}},
		"CA of the future":      {caOf, none, start.Add(-year / 12), []string{"the clock says 2026-05-02T02:00:00Z", "is valid from 2026-06-01T11:55:00Z"}},
		"leaf, CA expired":      {leafOf, none, start.Add(11 * year), []string{"the CA", "expired at", "ca.key"}},
		"leaf, CA future":       {leafOf, none, start.Add(-year / 12), []string{"the clock says", "set the clock"}},
		"leaf, clock at 1970":   {leafOf, none, time.Unix(0, 0), []string{"1970-01-01", "set the clock"}},
		"leaf, CA gone":         {leafOf, both(remove("ca.crt"), remove("ca.key"), remove("apiserver.crt")), start, []string{"read signer ca", "ca.key do not exist"}},
		"leaf, signer far":      {leafOf, both(remove("apiserver.crt"), func(_ *testing.T, _ string, w *pki.Want) { w.SignerKey = "" }), start, []string{"its signer ca is not on this machine"}},
		"leaf for no usage":     {leafOf, func(_ *testing.T, _ string, w *pki.Want) { w.Usages = nil }, start, []string{"has no usage"}},
		"leaf signed by a leaf": {leafOf, both(remove("ca.crt"), remove("ca.key"), copyFile("apiserver.crt", "ca.crt"), copyFile("apiserver.key", "ca.key"), remove("apiserver.crt")), start, []string{"is not a certificate authority"}},
		"private key gone":      {keyPairWant, remove("sa.key"), start, []string{"sa.key does not exist", "sa.pub", restore}},
		"private key empty":     {keyPairWant, write("sa.key", 0o600, "x"), start, []string{"sa.key is damaged", restore}},
		"private key open":      {keyPairWant, chmod("sa.key", 0o604), start, []string{"other users may read"}},
		"private key other":     {keyPairWant, copyFile("ca.key", "sa.key"), start, []string{"no key in", restore}},
		"secret short":          {secretWant, write("encryption.key", 0o600, "short"), start, []string{"encryption.key is damaged: it has 5 bytes", "backup"}},
		"secret open":           {secretWant, chmod("encryption.key", 0o644), start, []string{"other users may read"}},
		"unknown kind":          {leafOf, func(_ *testing.T, _ string, w *pki.Want) { w.Kind = "Seal" }, start, []string{`unknown kind "Seal"`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			ensure(t, at(start), everything(dir)...)
			w := tt.want(dir)
			tt.tamper(t, dir, &w)
			before := snapshot(t, dir)
			l := at(tt.now)
			if ok, _, detail, err := l.Check(t.Context(), w); ok || (detail == "" && err == nil) {
				t.Errorf("check: got ok=%v, detail %q, error %v", ok, detail, err)
			}
			err := l.Ensure(t.Context(), w)
			if err == nil {
				t.Fatal("Ensure did not refuse")
			}
			for _, want := range tt.wantIn {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got error %q, want %q in it", err, want)
				}
			}
			if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
				t.Errorf("a refused Ensure changed files: %s", diff)
			}
		})
	}
}

// A CA past two thirds of its lifetime is still ok, with a notice.
func TestCARenewalNotice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := authority(dir, "ca")
	ensure(t, at(start), ca)
	l := at(start.Add(8 * year))
	if ok, _, detail, err := l.Check(t.Context(), ca); !ok || !strings.HasPrefix(detail, "renewal due since ") || err != nil {
		t.Errorf("got ok=%v, detail %q, error %v", ok, detail, err)
	}
	ensure(t, l, ca)
}

// A lost public key file is written again. A file with further keys for older tokens stays as it is.
func TestPublicKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, old := keyPairWant(dir), pki.Want{Name: "old", Kind: pki.KeyPair, CertPath: filepath.Join(dir, "old.pub"), KeyPath: filepath.Join(dir, "old.key")}
	l := at(start)
	ensure(t, l, w, old)
	made := snapshot(t, dir)
	for name, tamper := range map[string]func(*testing.T, string, *pki.Want){"gone": remove("sa.pub"), "garbled": write("sa.pub", 0o644, "x")} {
		tamper(t, dir, nil)
		if ok, exists, detail, err := l.Check(t.Context(), w); ok || !exists || detail == "" || err != nil {
			t.Errorf("%s: got ok=%v, exists=%v, detail %q, error %v", name, ok, exists, detail, err)
		}
		ensure(t, l, w)
		if diff := cmp.Diff(made, snapshot(t, dir)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	both, _ := os.ReadFile(old.CertPath)
	mine, _ := os.ReadFile(w.CertPath)
	write("sa.pub", 0o644, string(both)+string(mine))(t, dir, nil)
	if ok, _, detail, _ := l.Check(t.Context(), w); !ok {
		t.Errorf("file with two public keys: got %s", detail)
	}
}

// An unreadable file does not count as missing.
func TestUnreadableIsNotMissing(t *testing.T) {
	t.Parallel()
	for _, w := range everything("/dev/null/no-directory") {
		_, _, _, err := at(start).Check(t.Context(), w)
		if err == nil {
			t.Errorf("%s: Check returned no error for an unreadable path", w.Name)
		}
		if at(start).Ensure(t.Context(), w) == nil {
			t.Errorf("%s: Ensure returned no error for an unreadable path", w.Name)
		}
	}
}

func caOf(dir string) pki.Want   { return authority(dir, "ca") }
func leafOf(dir string) pki.Want { return server(dir, authority(dir, "ca")) }

func remove(name string) func(*testing.T, string, *pki.Want) {
	return func(t *testing.T, dir string, _ *pki.Want) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func write(name string, mode os.FileMode, content string) func(*testing.T, string, *pki.Want) {
	return func(t *testing.T, dir string, _ *pki.Want) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
}

func copyFile(from, to string) func(*testing.T, string, *pki.Want) {
	return func(t *testing.T, dir string, w *pki.Want) {
		data, err := os.ReadFile(filepath.Join(dir, from))
		if err != nil {
			t.Fatal(err)
		}
		write(to, 0o600, string(data))(t, dir, w)
	}
}

func chmod(name string, mode os.FileMode) func(*testing.T, string, *pki.Want) {
	return func(t *testing.T, dir string, _ *pki.Want) {
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
}

func both(steps ...func(*testing.T, string, *pki.Want)) func(*testing.T, string, *pki.Want) {
	return func(t *testing.T, dir string, w *pki.Want) {
		for _, step := range steps {
			step(t, dir, w)
		}
	}
}

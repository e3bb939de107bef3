// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/core/pki"
)

// Keys that a cluster has only once are created only with a permit, not because their file is missing.
func TestPermit(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]func(dir string) pki.Want{
		"CA": caOf, "key pair": keyPairWant, "secret": secretWant,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			w := want(dir)
			w.Permit = filepath.Join(dir, "permit")
			err := at(start).Ensure(t.Context(), w)
			if err == nil || !strings.Contains(err.Error(), "only init may create it") {
				t.Errorf("without a permit: got %v, want a refusal", err)
			}
			if left := snapshot(t, dir); len(left) != 0 {
				t.Errorf("Ensure without a permit left %v", left)
			}
			if err := os.WriteFile(w.Permit, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			ensure(t, at(start), w)
			before := snapshot(t, dir)
			if err := os.Remove(w.Permit); err != nil {
				t.Fatal(err)
			}
			delete(before, "/permit")
			ensure(t, at(start), w) // existing files need no permit
			if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
				t.Errorf("Ensure without a permit changed files (-before +after):\n%s", diff)
			}
		})
	}
}

// signerAndNode returns the custody of a control plane and the directory of a machine that has only the CA's certificate.
func signerAndNode(t *testing.T) (signer *Local, w pki.Want, node string) {
	t.Helper()
	there, here := t.TempDir(), t.TempDir()
	signer = at(start)
	ensure(t, signer, authority(there, "ca"))
	text, err := os.ReadFile(filepath.Join(there, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(here, "ca.crt"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return signer, leaf(there, "kubelet", authority(there, "ca"), pki.ClientAuth), here
}

func onNode(w pki.Want, dir string) pki.Want {
	w.CertPath, w.KeyPath = filepath.Join(dir, "kubelet.crt"), filepath.Join(dir, "kubelet.key")
	w.SignerCert, w.SignerKey = filepath.Join(dir, "ca.crt"), ""
	return w
}

func publicKeyOf(t *testing.T, request []byte) any {
	t.Helper()
	csr, err := x509.ParseCertificateRequest(request)
	if err != nil {
		t.Fatal(err)
	}
	if csr.Subject.String() != "" || len(csr.Extensions) > 0 {
		t.Errorf("the request has the subject %s and %d extensions, want none", csr.Subject, len(csr.Extensions))
	}
	return csr.PublicKey
}

func TestRemoteSigner(t *testing.T) {
	t.Parallel()
	signer, w, dir := signerAndNode(t)
	mine := onNode(w, dir)
	asked := 0
	l := at(start)
	l.Remote = func(_ context.Context, _ pki.Want, request []byte) ([]byte, error) {
		asked++
		if len(snapshot(t, dir)) != 1 {
			t.Error("a file was written before the certificate was received")
		}
		return signer.Sign(w, publicKeyOf(t, request))
	}
	ensure(t, l, mine)
	if ok, _, why, err := l.Check(t.Context(), mine); !ok || err != nil {
		t.Errorf("check: got %s, %v", why, err)
	}
	ensure(t, l, mine)
	if asked != 1 {
		t.Errorf("the signer was asked %d times, want once", asked)
	}
	l.Remote = func(context.Context, pki.Want, []byte) ([]byte, error) { return nil, errors.New("no route to host") }
	l.Now = at(start.Add(year / 4 * 3)).Now // due for renewal
	before := snapshot(t, dir)
	if err := l.Ensure(t.Context(), mine); err == nil || !strings.Contains(err.Error(), "no route to host") {
		t.Errorf("without a signer: got %v", err)
	}
	if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
		t.Errorf("a failed renewal changed files:\n%s", diff)
	}
}

// A certificate that does not match the key and the Want is refused.
func TestRemoteAnswersRefused(t *testing.T) {
	t.Parallel()
	signer, w, dir := signerAndNode(t)
	mine := onNode(w, dir)
	other := certtest.Key(t)
	otherCA := authority(t.TempDir(), "ca")
	ensure(t, signer, otherCA)
	for name, answer := range map[string]func(pub any) ([]byte, error){
		"another key": func(any) ([]byte, error) { return signer.Sign(w, other.Public()) },
		"another name": func(pub any) ([]byte, error) {
			x := w
			x.CommonName = "system:node:other"
			return signer.Sign(x, pub)
		},
		"more rights": func(pub any) ([]byte, error) {
			x := w
			x.Organizations = []string{"system:masters"}
			return signer.Sign(x, pub)
		},
		"another CA": func(pub any) ([]byte, error) {
			x := w
			x.SignerCert = otherCA.CertPath
			return signer.Sign(x, pub)
		},
		"empty": func(any) ([]byte, error) { return nil, nil },
		"two certificates": func(pub any) ([]byte, error) {
			one, err := signer.Sign(w, pub)
			return append(one, one...), err
		},
		"a key": func(any) ([]byte, error) {
			return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}), nil
		},
	} {
		request, finish, err := at(start).Request(mine)
		if err != nil {
			t.Fatal(err)
		}
		text, err := answer(publicKeyOf(t, request))
		if err != nil {
			t.Fatal(err)
		}
		if err := finish(text); err == nil {
			t.Errorf("%s was accepted", name)
		}
		if left := snapshot(t, dir); len(left) != 1 {
			t.Errorf("%s left %v", name, left)
		}
	}
	if _, _, err := at(start).Request(caOf(dir)); err == nil {
		t.Error("Request accepts a CA")
	}
	if _, err := signer.Sign(authority(dir, "ca"), other.Public()); err == nil {
		t.Error("Sign accepts a CA")
	}
}

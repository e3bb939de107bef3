// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"bytes"
	"testing"

	"github.com/slipway-project/slipway/internal/core/pki"
)

func TestRenewNow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := at(start)
	ca := authority(dir, "ca")
	w := server(dir, ca)
	if err := l.RenewNow(w); err != nil {
		t.Errorf("what does not exist is made anyhow: %v", err)
	}
	ensure(t, l, ca, w)
	before := mustCert(t, w.CertPath)
	for range 2 { // asked twice, done once
		if err := l.RenewNow(w); err != nil {
			t.Fatal(err)
		}
	}
	if ok, exists, detail, err := l.Check(t.Context(), w); ok || !exists || detail != "its renewal was asked for" || err != nil {
		t.Errorf("when asked for: ok %v, exists %v, %q, %v", ok, exists, detail, err)
	}
	ensure(t, l, w)
	after := mustCert(t, w.CertPath)
	if bytes.Equal(after.Raw, before.Raw) || sameKey(after.PublicKey, before.PublicKey) {
		t.Error("the certificate or its key is the old one")
	}
	if ok, _, detail, err := l.Check(t.Context(), w); !ok || err != nil {
		t.Errorf("renewed: %q, %v", detail, err)
	}
	ensure(t, l, w)
	if again := mustCert(t, w.CertPath); !bytes.Equal(again.Raw, after.Raw) {
		t.Error("it was renewed twice")
	}
	for _, kept := range []pki.Want{ca, keyPairWant(dir), secretWant(dir)} {
		if err := l.RenewNow(kept); err == nil {
			t.Errorf("%s may be renewed", kept.Name)
		}
	}
}

func TestLife(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := at(start)
	ca := authority(dir, "ca")
	w := server(dir, ca)
	if _, notAfter, _, err := l.Life(w); !notAfter.IsZero() || err != nil {
		t.Errorf("of nothing: %v, %v", notAfter, err)
	}
	ensure(t, l, ca, w)
	cert := mustCert(t, w.CertPath)
	notBefore, notAfter, renewed, err := l.Life(w)
	if err != nil || !notBefore.Equal(cert.NotBefore) || !notAfter.Equal(cert.NotAfter) {
		t.Errorf("of a leaf: %v, %v, %v", notBefore, notAfter, err)
	}
	if early, late := start.Add(year*59/100), start.Add(year*67/100); renewed.Before(early) || renewed.After(late) {
		t.Errorf("renewed at %v", renewed)
	}
	if _, notAfter, renewed, err := l.Life(ca); notAfter.IsZero() || !renewed.IsZero() || err != nil {
		t.Errorf("of a CA: %v, %v, %v", notAfter, renewed, err)
	}
	if _, notAfter, _, err := l.Life(secretWant(dir)); !notAfter.IsZero() || err != nil {
		t.Errorf("of a secret: %v, %v", notAfter, err)
	}
}

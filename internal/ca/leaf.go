// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/slipway-project/slipway/internal/core/pki"
)

func (l *Local) checkLeaf(w pki.Want) (ok, exists bool, detail string, err error) {
	p, err := readPair(w)
	if err != nil {
		return false, false, "", err
	}
	exists = p.certExists || p.keyExists
	if why := p.broken(w); why != "" {
		return false, exists, why, nil
	}
	why, err := l.unfitLeaf(w, p.cert)
	return err == nil && why == "", exists, why, err
}

// unfitLeaf tells why a certificate with its key is to be issued anew, or "".
func (l *Local) unfitLeaf(w pki.Want, cert *x509.Certificate) (string, error) {
	if why := differs(w, cert); why != "" {
		return why, nil
	}
	if !onP256(cert.PublicKey) {
		return "its key is not ECDSA P-256", nil
	}
	now := l.now()
	switch {
	case now.Before(cert.NotBefore):
		return fmt.Sprintf("it is valid from %s and the clock says %s", day(cert.NotBefore), day(now)), nil
	case now.After(cert.NotAfter):
		return "it has expired at " + day(cert.NotAfter), nil
	}
	if why := l.renewal(cert); why != "" {
		return why, nil
	}
	if w.SignerCert == "" {
		return "", nil // signed elsewhere: only the components can tell
	}
	signer, bad, err := readCert(w.SignerCert)
	switch {
	case err != nil:
		return "", err
	case bad != "":
		return "its signer cannot be asked: " + bad, nil
	case signer == nil:
		return "its signer " + w.SignerCert + " does not exist", nil
	case !signedBy(cert, signer):
		return "it is not signed by " + w.SignerCert, nil
	}
	return "", nil
}

// ensureLeaf reuses a key that has no certificate of its own yet; a certificate that is due or differs gets a new key.
func (l *Local) ensureLeaf(ctx context.Context, w pki.Want) error {
	p, err := readPair(w)
	if err != nil {
		return err
	}
	if p.unfinished() && p.broken(w) != "" {
		if why, err := l.unfitLeaf(w, p.staged); why == "" && err == nil {
			return l.finishPair(w)
		}
	}
	if p.broken(w) == "" {
		if why, err := l.unfitLeaf(w, p.cert); why == "" || err != nil {
			return err
		}
		p.key = nil
	}
	if w.SignerKey == "" {
		return l.ask(ctx, w)
	}
	if p.key != nil && onP256(p.key.Public()) {
		return l.issue(w, p.key.Public(), nil)
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	return l.issue(w, key.Public(), key)
}

// issue signs for pub and writes the pair; key is nil where it is on the disk already.
func (l *Local) issue(w pki.Want, pub crypto.PublicKey, key *ecdsa.PrivateKey) error {
	signer, signerKey, err := readSigner(w)
	if err != nil {
		return err
	}
	now, err := l.clock()
	if err != nil {
		return err
	}
	der, err := signLeaf(w, pub, signer, signerKey, now)
	if err != nil {
		return err
	}
	return l.writePair(w, der, key)
}

func readSigner(w pki.Want) (*x509.Certificate, crypto.Signer, error) {
	if w.SignerCert == "" || w.SignerKey == "" {
		return nil, nil, fmt.Errorf("its signer %s is not on this machine", w.Signer)
	}
	files := pki.Want{CertPath: w.SignerCert, KeyPath: w.SignerKey}
	p, err := readPair(files)
	if err != nil {
		return nil, nil, err
	}
	if why := p.broken(files); why != "" {
		return nil, nil, fmt.Errorf("read signer %s: %w", w.Signer, errors.New(why))
	}
	return p.cert, p.key, nil
}

func onP256(pub crypto.PublicKey) bool {
	key, ok := pub.(*ecdsa.PublicKey)
	return ok && key.Curve == elliptic.P256()
}

func signedBy(cert, signer *x509.Certificate) bool {
	return bytes.Equal(cert.RawIssuer, signer.RawSubject) && cert.CheckSignatureFrom(signer) == nil
}

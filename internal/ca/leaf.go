// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/slipway-project/slipway/internal/core/pki"
)

// checkLeaf is Check for a leaf certificate. A leaf that is due for renewal is not ok.
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

// unfitLeaf returns the reason why a certificate must be issued again, or "".
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
		return fmt.Sprintf("it is valid from %s but the clock says %s", day(cert.NotBefore), day(now)), nil
	case now.After(cert.NotAfter):
		return "it expired at " + day(cert.NotAfter), nil
	}
	if why := l.renewal(cert); why != "" {
		return why, nil
	}
	if w.SignerCert == "" {
		return "", nil // signed by another machine, and this one does not have the CA's certificate
	}
	signer, bad, err := readCert(w.SignerCert)
	switch {
	case err != nil:
		return "", err
	case bad != "":
		return "its signer cannot be read: " + bad, nil
	case signer == nil:
		return "its signer " + w.SignerCert + " does not exist", nil
	case !signedBy(cert, signer):
		return "it is not signed by " + w.SignerCert, nil
	}
	return "", nil
}

// ensureLeaf reuses a key that has no certificate yet. A certificate that differs or is due for renewal gets a new key.
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
		return l.ensureRemote(ctx, w)
	}
	var pub crypto.PublicKey
	var key *ecdsa.PrivateKey // nil: the key in the file stays
	if p.key != nil && onP256(p.key.Public()) {
		pub = p.key.Public()
	} else {
		if key, err = newKey(); err != nil {
			return err
		}
		pub = key.Public()
	}
	der, err := l.signLeaf(w, pub)
	if err != nil {
		return err
	}
	return l.writePair(w, der, key)
}

// ensureRemote creates a leaf whose CA is on another machine.
func (l *Local) ensureRemote(ctx context.Context, w pki.Want) error {
	if l.Remote == nil {
		return fmt.Errorf("its signer %s is not on this machine", w.Signer)
	}
	request, finish, err := l.Request(w)
	if err != nil {
		return err
	}
	certificate, err := l.Remote(ctx, w, request)
	if err != nil {
		return err
	}
	return finish(certificate)
}

// Request creates a key and a certificate request for a leaf whose CA is not on this machine. It writes nothing. finish checks the
// certificate that was issued for the request and writes both files.
func (l *Local) Request(w pki.Want) (request []byte, finish func(certificate []byte) error, err error) {
	if w.Kind != pki.Leaf {
		return nil, nil, fmt.Errorf("request %s: it is not a leaf certificate", w.Name)
	}
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	request, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, nil, fmt.Errorf("request %s: %w", w.Name, err)
	}
	return request, func(certificate []byte) error {
		cert, err := l.checkIssued(w, key, certificate)
		if err != nil {
			return fmt.Errorf("accept certificate %s: %w", w.Name, err)
		}
		return l.writePair(w, cert.Raw, key)
	}, nil
}

// checkIssued accepts only a certificate that is for this key, matches the Want and was signed by the CA whose certificate is on
// this machine.
func (l *Local) checkIssued(w pki.Want, key *ecdsa.PrivateKey, certificate []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(certificate)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("the answer is not exactly one PEM certificate")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, err
	}
	if !sameKey(cert.PublicKey, key.Public()) {
		return nil, errors.New("it is for another key")
	}
	switch why, err := l.unfitLeaf(w, cert); {
	case err != nil:
		return nil, err
	case why != "":
		return nil, errors.New(why)
	}
	return cert, nil
}

// onP256 reports whether a key is an ECDSA key on P-256, the only kind that Slipway uses for leaf
// certificates.
func onP256(pub crypto.PublicKey) bool {
	key, ok := pub.(*ecdsa.PublicKey)
	return ok && key.Curve == elliptic.P256()
}

// signedBy checks the issuer name and the signature; it does not check validity periods.
func signedBy(cert, signer *x509.Certificate) bool {
	return bytes.Equal(cert.RawIssuer, signer.RawSubject) && cert.CheckSignatureFrom(signer) == nil
}

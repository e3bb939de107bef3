// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/slipway-project/slipway/internal/core/pki"
)

// checkCA is Check for a CA. A CA that is due for renewal is still ok, with a notice in detail.
func (l *Local) checkCA(w pki.Want) (ok, exists bool, detail string, err error) {
	p, err := readPair(w)
	if err != nil {
		return false, false, "", err
	}
	exists = p.certExists || p.keyExists
	if why := p.broken(w); why != "" {
		return false, exists, why, nil
	}
	if why := l.unfitCA(w, p.cert); why != "" {
		return false, true, why, nil
	}
	return true, true, l.renewal(p.cert), nil
}

// unfitCA returns the reason why an existing CA is not the wanted one, or "".
func (l *Local) unfitCA(w pki.Want, cert *x509.Certificate) string {
	now := l.now()
	switch {
	case !cert.IsCA || !cert.BasicConstraintsValid:
		return w.CertPath + " is not a certificate authority"
	case cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return w.CertPath + " is not allowed to sign certificates"
	case now.After(cert.NotAfter):
		return fmt.Sprintf("%s expired at %s", w.CertPath, day(cert.NotAfter))
	case now.Before(cert.NotBefore):
		return fmt.Sprintf("the clock says %s but %s is valid from %s", day(now), w.CertPath, day(cert.NotBefore))
	}
	if why := subjectDiffers(w, cert); why != "" {
		return w.CertPath + ": " + why
	}
	return ""
}

// ensureCA creates a CA once. It never replaces an existing one, because everything that the CA has signed depends on it.
func (l *Local) ensureCA(w pki.Want) error {
	p, err := readPair(w)
	if err != nil {
		return err
	}
	switch {
	case !p.certExists && !p.keyExists:
		if err := permitted(w); err != nil {
			return err
		}
		return l.createCA(w)
	case !p.certExists && p.unfinished():
		return l.finishPair(w)
	case p.keyOpen:
		return refuseOpen(p.keyBad)
	}
	if why := p.broken(w); why != "" {
		return fmt.Errorf("%s. A CA is never created again, because everything that it has signed would become invalid. Restore %s and %s "+
			"from a backup or from another control plane machine. Only if this cluster has never run, remove both files", why, w.CertPath, w.KeyPath)
	}
	if why := l.unfitCA(w, p.cert); why != "" {
		return fmt.Errorf("%s. A CA is never replaced automatically: set the clock, or put another pair at %s and %s", why, w.CertPath, w.KeyPath)
	}
	return nil
}

// createCA creates the key and the self-signed certificate of a CA. No file of the Want may exist.
func (l *Local) createCA(w pki.Want) error {
	now, err := l.issueTime()
	if err != nil {
		return err
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	tmpl, err := template(w, now)
	if err != nil {
		return err
	}
	tmpl.IsCA = true
	tmpl.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	der, err := sign(tmpl, tmpl, key.Public(), key)
	if err != nil {
		return err
	}
	return l.writePair(w, der, key)
}

// Sign issues a certificate for the public key of another machine. Everything else comes from the Want. The CA's key must be next
// to its certificate (ca.crt, ca.key). It fails with a *pki.ClockError if it cannot sign because of a clock.
func (l *Local) Sign(w pki.Want, pub crypto.PublicKey) (certificate []byte, err error) {
	if w.Kind != pki.Leaf || !onP256(pub) {
		return nil, errors.New("sign certificate: only leaf certificates with a P-256 key can be signed")
	}
	w.SignerKey = strings.TrimSuffix(w.SignerCert, ".crt") + ".key"
	der, err := l.signLeaf(w, pub)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// signLeaf signs a leaf certificate with the CA on this machine.
func (l *Local) signLeaf(w pki.Want, pub crypto.PublicKey) (der []byte, err error) {
	if w.SignerCert == "" || w.SignerKey == "" {
		return nil, fmt.Errorf("its signer %s is not on this machine", w.Signer)
	}
	files := pki.Want{CertPath: w.SignerCert, KeyPath: w.SignerKey}
	signer, err := readPair(files)
	if err != nil {
		return nil, err
	}
	if why := signer.broken(files); why != "" {
		return nil, fmt.Errorf("read signer %s: %w", w.Signer, errors.New(why))
	}
	now, err := l.issueTime()
	if err != nil {
		return nil, err
	}
	ca := signer.cert
	switch {
	case !ca.IsCA || ca.KeyUsage&x509.KeyUsageCertSign == 0:
		return nil, fmt.Errorf("%s is not a certificate authority", w.SignerCert)
	case now.Before(ca.NotBefore):
		return nil, &pki.ClockError{Text: fmt.Sprintf("the clock says %s but the CA %s is valid from %s: set the clock", day(now), w.SignerCert, day(ca.NotBefore))}
	case !now.Before(ca.NotAfter):
		return nil, &pki.ClockError{Text: fmt.Sprintf("the CA %s expired at %s: put a new pair at %s and %s, or set the clock", w.SignerCert, day(ca.NotAfter), w.SignerCert, w.SignerKey)}
	case len(w.Usages) == 0:
		return nil, errors.New("the certificate has no usage, so it could be used for any purpose")
	}
	tmpl, err := template(w, now)
	if err != nil {
		return nil, err
	}
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	if tmpl.NotBefore.Before(ca.NotBefore) { // a leaf's validity stays within that of its signer
		tmpl.NotBefore = ca.NotBefore
	}
	if tmpl.NotAfter.After(ca.NotAfter) {
		tmpl.NotAfter = ca.NotAfter
	}
	return sign(tmpl, ca, pub, signer.key)
}

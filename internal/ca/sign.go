// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"

	"github.com/slipway-project/slipway/internal/core/pki"
)

// backdate forgives clocks that run behind the signer's.
const backdate = 5 * time.Minute

var extUsages = map[pki.Usage]x509.ExtKeyUsage{
	pki.ServerAuth: x509.ExtKeyUsageServerAuth,
	pki.ClientAuth: x509.ExtKeyUsageClientAuth,
}

// template is what a Want says, as a certificate without a key.
func template(w pki.Want, now time.Time) (*x509.Certificate, error) {
	if w.Lifetime <= 0 {
		return nil, fmt.Errorf("the lifetime %s is not positive", w.Lifetime)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	tmpl := &x509.Certificate{
		SerialNumber:          serial.Add(serial, big.NewInt(1)), // zero is not allowed
		Subject:               pkix.Name{CommonName: w.CommonName, Organization: w.Organizations},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(w.Lifetime),
		BasicConstraintsValid: true,
	}
	tmpl.DNSNames = append(tmpl.DNSNames, w.DNSNames...)
	for _, a := range w.Addresses {
		tmpl.IPAddresses = append(tmpl.IPAddresses, net.IP(a.Unmap().AsSlice()))
	}
	for _, u := range w.Usages {
		ext, ok := extUsages[u]
		if !ok {
			return nil, fmt.Errorf("unknown usage %q", u)
		}
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, ext)
	}
	return tmpl, nil
}

// signLeaf issues a certificate for pub. Everything else comes from the Want; it never outlives its signer.
func signLeaf(w pki.Want, pub crypto.PublicKey, signer *x509.Certificate, key crypto.Signer, now time.Time) ([]byte, error) {
	switch {
	case !signer.IsCA || signer.KeyUsage&x509.KeyUsageCertSign == 0:
		return nil, fmt.Errorf("%s is no certificate authority", w.SignerCert)
	case now.Before(signer.NotBefore):
		return nil, &pki.ClockError{Text: fmt.Sprintf("the clock says %s and the CA %s is valid from %s: set the clock", day(now), w.SignerCert, day(signer.NotBefore))}
	case !now.Before(signer.NotAfter):
		return nil, &pki.ClockError{Text: fmt.Sprintf("the CA %s has expired at %s: put a new pair at %s and %s, or set the clock", w.SignerCert, day(signer.NotAfter), w.SignerCert, w.SignerKey)}
	case len(w.Usages) == 0:
		return nil, errors.New("a certificate without a usage would serve for all of them")
	}
	tmpl, err := template(w, now)
	if err != nil {
		return nil, err
	}
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	if tmpl.NotBefore.Before(signer.NotBefore) {
		tmpl.NotBefore = signer.NotBefore
	}
	if tmpl.NotAfter.After(signer.NotAfter) {
		tmpl.NotAfter = signer.NotAfter
	}
	return sign(tmpl, signer, pub, key)
}

func sign(tmpl, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	return der, nil
}

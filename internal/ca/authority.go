// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"crypto/x509"
	"fmt"

	"github.com/slipway-project/slipway/internal/core/pki"
)

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

// unfitCA tells why an authority that exists, with its key, cannot be the one that is wanted.
func (l *Local) unfitCA(w pki.Want, cert *x509.Certificate) string {
	now := l.now()
	switch {
	case !cert.IsCA || !cert.BasicConstraintsValid:
		return w.CertPath + " is no certificate authority"
	case cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return w.CertPath + " must not sign certificates"
	case now.After(cert.NotAfter):
		return fmt.Sprintf("%s has expired at %s", w.CertPath, day(cert.NotAfter))
	case now.Before(cert.NotBefore):
		return fmt.Sprintf("the clock says %s and %s is valid from %s", day(now), w.CertPath, day(cert.NotBefore))
	}
	if why := subjectDiffers(w, cert); why != "" {
		return w.CertPath + ": " + why
	}
	return ""
}

// ensureCA makes an authority once. Everything signed by it hangs on it, so that nothing here replaces one that exists.
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
		return l.makeCA(w)
	case !p.certExists && p.unfinished():
		return l.finishPair(w)
	case p.keyOpen:
		return refuseOpen(p.keyBad)
	}
	if why := p.broken(w); why != "" {
		return fmt.Errorf("%s. A CA is never made a second time, because everything signed by it would be worthless. Restore %s and %s "+
			"from a backup or from another control-plane machine; only if this cluster has never run, remove both files", why, w.CertPath, w.KeyPath)
	}
	if why := l.unfitCA(w, p.cert); why != "" {
		return fmt.Errorf("%s. A CA is never replaced by itself: set the clock, or put another pair at %s and %s", why, w.CertPath, w.KeyPath)
	}
	return nil
}

func (l *Local) makeCA(w pki.Want) error {
	now, err := l.clock()
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

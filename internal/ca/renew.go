// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/slipway-project/slipway/internal/core/pki"
)

// RenewNow has the certificate that is there now issued anew, with a new key, when it is ensured next. What cannot be renewed without
// breaking the cluster (a CA, a service-account key, a secret) is refused. The wish does not outlive the process.
func (l *Local) RenewNow(w pki.Want) error {
	if w.Kind != pki.Leaf {
		return fmt.Errorf("renew %s: it is a %s, on which others depend: it stays", w.Name, w.Kind)
	}
	cert, bad, err := readCert(w.CertPath)
	if err != nil {
		return fmt.Errorf("renew %s: %w", w.Name, err)
	}
	if cert == nil || bad != "" {
		return nil // it is made anew anyhow
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.due == nil {
		l.due = map[[32]byte]string{}
	}
	for sum, path := range l.due { // of certificates that are gone
		if path == w.CertPath {
			delete(l.due, sum)
		}
	}
	l.due[sha256.Sum256(cert.Raw)] = w.CertPath
	return nil
}

func (l *Local) isDue(cert *x509.Certificate) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, due := l.due[sha256.Sum256(cert.Raw)]
	return due
}

// Life tells from when to when the certificate that is there is valid, and when it is renewed by itself. All are zero where there
// is none, or none that can be read. A CA is not renewed by itself.
func (l *Local) Life(w pki.Want) (notBefore, notAfter, renewed time.Time, err error) {
	if w.Kind != pki.Leaf && w.Kind != pki.CA {
		return time.Time{}, time.Time{}, time.Time{}, nil
	}
	cert, _, err := readCert(w.CertPath)
	if err != nil || cert == nil {
		return time.Time{}, time.Time{}, time.Time{}, err
	}
	if w.Kind == pki.Leaf {
		renewed = pki.RenewAt(cert.NotBefore, cert.NotAfter, cert.SerialNumber.Bytes())
	}
	return cert.NotBefore, cert.NotAfter, renewed, nil
}

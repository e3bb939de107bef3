// SPDX-License-Identifier: Apache-2.0

// Package ca creates and keeps the key material that package pki describes, in files of this machine, and signs certificates for
// other machines. The caller decides all names, addresses and lifetimes. The package never creates a certificate authority twice,
// and no error contains a byte of a secret.
//
// Read [Local] with Check and Ensure first. pair.go describes how the files of a certificate and its key are written.
//
//	var keys ca.Local
//	err := keys.Ensure(ctx, pki.Want{Name: "apiserver", Kind: pki.Leaf, CertPath: "/…/apiserver.crt", KeyPath: "/…/apiserver.key", …})
package ca

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/durable"
)

// Local creates key material in files of this machine. The zero value is ready to use. Its methods may be called concurrently for
// different Wants, but not for the same Want.
type Local struct {
	Now    func() time.Time // optional: the clock. Default: time.Now
	Built  time.Time        // optional: the build time of this program. A clock before it is wrong
	Remote Remote           // optional: signs leaves whose CA is not on this machine

	mu  sync.Mutex          // guards the field below
	due map[[32]byte]string // certificates that RenewNow was called for: hash to path

	// crash simulates a power failure in tests: it is called after every change of a file, and an error ends Ensure there.
	crash func(point string) error
}

// Remote has a certificate signed by another machine. The request is a PKCS#10 request in DER that contains a public key and
// nothing else; the result is one certificate in PEM.
type Remote func(ctx context.Context, w pki.Want, request []byte) (certificate []byte, err error)

// firstRelease is the earliest time that a correct clock can show to this program.
var firstRelease = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Check compares the files with the Want and changes nothing. exists is true if any file of the Want exists. detail says what
// differs; if ok is true, it may contain a notice, for example that the renewal of a CA is due. After an error, the state of the
// files is unknown.
func (l *Local) Check(ctx context.Context, w pki.Want) (ok, exists bool, detail string, err error) {
	if err := ctx.Err(); err != nil {
		return false, false, "", err
	}
	switch w.Kind {
	case pki.CA:
		return l.checkCA(w)
	case pki.Leaf:
		return l.checkLeaf(w)
	case pki.KeyPair:
		return checkKeyPair(w)
	case pki.Secret:
		exists, _, detail, err = readSecret(w.KeyPath)
		return exists && detail == "" && err == nil, exists, detail, err
	}
	return false, false, "", fmt.Errorf("check %s: unknown kind %q", w.Name, w.Kind)
}

// Ensure creates the files of the Want unless they exist and match. It may be killed at any point: the next call completes the
// work. A CA, a service account key or a secret is never overwritten, because the cluster depends on it. If such a file differs or
// is damaged, the error says what to do.
func (l *Local) Ensure(ctx context.Context, w pki.Want) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.ensure(ctx, w); err != nil {
		return fmt.Errorf("ensure %s: %w", w.Name, err)
	}
	return nil
}

func (l *Local) ensure(ctx context.Context, w pki.Want) error {
	for _, path := range []string{w.CertPath, w.KeyPath} { // temporary files of an interrupted call: nothing else writes them now
		if path == "" {
			continue
		}
		if err := durable.RemoveTempFiles(path, path+stagedExt); err != nil {
			return err
		}
	}
	switch w.Kind {
	case pki.CA:
		return l.ensureCA(w)
	case pki.Leaf:
		return l.ensureLeaf(ctx, w)
	case pki.KeyPair:
		return l.ensureKeyPair(w)
	case pki.Secret:
		return l.ensureSecret(w)
	}
	return fmt.Errorf("unknown kind %q", w.Kind)
}

// permitted refuses to create what a cluster has only once, unless this machine initializes the cluster. A missing file alone is
// no reason to create it: it may be lost, or another machine may be about to send it.
func permitted(w pki.Want) error {
	if w.Permit == "" {
		return nil
	}
	_, err := os.Stat(w.Permit)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s is missing and only init may create it: restore it from a backup or from another control plane machine, "+
			"or remove this machine from the cluster (slipway node remove, slipway node reset) and let it join again", w.KeyPath)
	}
	return fmt.Errorf("check the permit to create %s: %w", w.KeyPath, err)
}

// RenewNow marks the current certificate so that the next Ensure replaces it and its key. It refuses a CA, a service account key or
// a secret, because others depend on it. The mark does not survive the process.
func (l *Local) RenewNow(w pki.Want) error {
	if w.Kind != pki.Leaf {
		return fmt.Errorf("renew %s: it is a %s, which cannot be renewed because others depend on it", w.Name, w.Kind)
	}
	cert, bad, err := readCert(w.CertPath)
	if err != nil {
		return fmt.Errorf("renew %s: %w", w.Name, err)
	}
	if cert == nil || bad != "" {
		return nil // Ensure creates it anyway
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.due == nil {
		l.due = map[[32]byte]string{}
	}
	for sum, path := range l.due { // an earlier certificate of the same file
		if path == w.CertPath {
			delete(l.due, sum)
		}
	}
	l.due[sha256.Sum256(cert.Raw)] = w.CertPath
	return nil
}

// renewal returns the reason why a certificate should be renewed, or "".
func (l *Local) renewal(cert *x509.Certificate) string {
	if at := pki.RenewAt(cert.NotBefore, cert.NotAfter, cert.SerialNumber.Bytes()); !l.now().Before(at) {
		return "renewal due since " + day(at)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, due := l.due[sha256.Sum256(cert.Raw)]; due {
		return "renewal was requested"
	}
	return ""
}

// Life returns the validity of the current certificate and the time of its automatic renewal. All are zero if the Want has no
// certificate or the file cannot be parsed. The renewal time of a CA is zero, because a CA is not renewed automatically.
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

func (l *Local) now() time.Time {
	if l.Now != nil {
		return l.Now()
	}
	return time.Now()
}

// issueTime returns the current time, or an error if the clock is certainly wrong: other machines would refuse a certificate that
// was issued by it.
func (l *Local) issueTime() (time.Time, error) {
	now, floor := l.now(), firstRelease
	if l.Built.After(floor) {
		floor = l.Built
	}
	if now.Before(floor.Add(-backdate)) {
		return time.Time{}, &pki.ClockError{Text: fmt.Sprintf("the clock says %s, which is before this program was built (%s): set the clock", day(now), day(floor))}
	}
	return now, nil
}

// wrote reports a change of a file to the crash tests.
func (l *Local) wrote(point string) error {
	if l.crash == nil {
		return nil
	}
	return l.crash(point)
}

// day formats a time for messages, in UTC.
func day(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/durable"
)

// A pair is a certificate and its key. It changes in three steps, each durable before the next:
//
//	1  CERT.new     the certificate, beside its place
//	2  KEY          the key
//	3  CERT         CERT.new renamed
//
// After a cut behind 1 the key was lost with the process and CERT.new means nothing. After a cut behind 2, CERT.new fits the
// key: that is the evidence that the pair was never used, and step 3 finishes it. A key without a certificate and without a
// fitting CERT.new is none of these: somebody took the certificate away.
type pair struct {
	cert, staged *x509.Certificate // nil: absent or damaged
	key          crypto.Signer     // nil: absent or damaged

	certExists, keyExists bool
	certBad, keyBad       string // what is wrong with a file that exists, in words
	keyOpen               bool   // what is wrong with the key is its mode
}

const stagedExt = ".new"

// readPair reads the files of w. An error means that nobody knows what they hold.
func readPair(w pki.Want) (p pair, err error) {
	if p.cert, p.certBad, err = readCert(w.CertPath); err != nil {
		return pair{}, err
	}
	if p.staged, _, err = readCert(w.CertPath + stagedExt); err != nil {
		return pair{}, err
	}
	if p.key, p.keyOpen, p.keyBad, err = readKey(w.KeyPath); err != nil {
		return pair{}, err
	}
	p.certExists = p.cert != nil || p.certBad != ""
	p.keyExists = p.key != nil || p.keyBad != ""
	return p, nil
}

// broken tells why the two files are no pair, or "".
func (p pair) broken(w pki.Want) string {
	switch {
	case p.certBad != "":
		return p.certBad
	case p.keyBad != "":
		return p.keyBad
	case !p.certExists && !p.keyExists:
		return w.CertPath + " and " + w.KeyPath + " do not exist"
	case !p.certExists:
		return w.CertPath + " does not exist, although its key " + w.KeyPath + " does"
	case !p.keyExists:
		return w.KeyPath + " does not exist, although its certificate " + w.CertPath + " does"
	case !sameKey(p.cert.PublicKey, p.key.Public()):
		return "the key " + w.KeyPath + " does not belong to the certificate " + w.CertPath
	}
	return ""
}

// unfinished tells that step 3 is all that is missing.
func (p pair) unfinished() bool {
	return p.key != nil && p.staged != nil && sameKey(p.staged.PublicKey, p.key.Public())
}

// writePair is the three steps above. key is nil where the key on the disk stays.
func (l *Local) writePair(w pki.Want, certDER []byte, key *ecdsa.PrivateKey) error {
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certDER})
	if err := durable.WriteFile(w.CertPath+stagedExt, 0o644, text); err != nil {
		return err
	}
	if err := l.wrote("certificate staged"); err != nil {
		return err
	}
	if key != nil {
		if err := l.writeKey(w.KeyPath, key); err != nil {
			return err
		}
	}
	return l.finishPair(w)
}

func (l *Local) finishPair(w pki.Want) error {
	if err := os.Rename(w.CertPath+stagedExt, w.CertPath); err != nil {
		return fmt.Errorf("put certificate in place: %w", err)
	}
	if err := durable.SyncDir(filepath.Dir(w.CertPath)); err != nil {
		return err
	}
	return l.wrote("certificate in place")
}

func (l *Local) writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return errors.New("encode key") // the cause may quote what it could not encode
	}
	if err := durable.WriteFile(path, 0o600, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})); err != nil {
		return err
	}
	return l.wrote("key written")
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return key, nil
}

func sameKey(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}

// removeDebris takes away the temporary files that a cut left beside these paths. Nobody else writes them while a Want is being
// ensured.
func removeDebris(paths ...string) error {
	for _, path := range paths {
		if path == "" {
			continue
		}
		if err := durable.RemoveDebris(path, path+stagedExt); err != nil {
			return err
		}
	}
	return nil
}

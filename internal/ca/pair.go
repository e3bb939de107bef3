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
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/durable"
)

// pair is the state of a certificate and its key. The files are written in three steps, each durable before the next:
//
//  1. CERT.new: the new certificate, next to the old one
//  2. KEY: the new key
//  3. CERT: CERT.new is renamed
//
// If the process is killed after step 1, the key is lost and CERT.new is useless. If it is killed after step 2, CERT.new belongs
// to the key, which proves that the pair was never used, and step 3 can be done later. A key with neither a certificate nor a
// matching CERT.new means that the certificate was removed.
type pair struct {
	cert, staged *x509.Certificate // nil: missing or damaged
	key          crypto.Signer     // nil: missing or damaged

	certExists, keyExists bool
	certBad, keyBad       string // what is wrong with an existing file
	keyOpen               bool   // keyBad is about the mode of the file
}

const stagedExt = ".new"

// readPair reads the files of a Want. After an error, their state is unknown.
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

// broken returns the reason why the two files are not a usable pair, or "".
func (p pair) broken(w pki.Want) string {
	switch {
	case p.certBad != "":
		return p.certBad
	case p.keyBad != "":
		return p.keyBad
	case !p.certExists && !p.keyExists:
		return w.CertPath + " and " + w.KeyPath + " do not exist"
	case !p.certExists:
		return w.CertPath + " does not exist, but its key " + w.KeyPath + " does"
	case !p.keyExists:
		return w.KeyPath + " does not exist, but its certificate " + w.CertPath + " does"
	case !sameKey(p.cert.PublicKey, p.key.Public()):
		return "the key " + w.KeyPath + " does not belong to the certificate " + w.CertPath
	}
	return ""
}

// unfinished reports whether only step 3 is missing.
func (p pair) unfinished() bool {
	return p.key != nil && p.staged != nil && sameKey(p.staged.PublicKey, p.key.Public())
}

// writePair does the three steps. If key is nil, the existing key stays.
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

// finishPair is step 3.
func (l *Local) finishPair(w pki.Want) error {
	if err := os.Rename(w.CertPath+stagedExt, w.CertPath); err != nil {
		return fmt.Errorf("rename new certificate: %w", err)
	}
	if err := durable.SyncDir(filepath.Dir(w.CertPath)); err != nil {
		return err
	}
	return l.wrote("certificate in place")
}

// writeKey writes a private key in PKCS#8 with mode 0600. The file is never readable by others, not even for
// a moment.
func (l *Local) writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return errors.New("encode key") // the cause might quote the key
	}
	if err := durable.WriteFile(path, 0o600, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})); err != nil {
		return err
	}
	return l.wrote("key written")
}

// newKey generates an ECDSA P-256 key.
func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	return key, nil
}

// sameKey compares two public keys of any type.
func sameKey(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}

// maxFile limits what is read. The files of this package have a few kilobytes.
const maxFile = 1 << 20

// read returns nil for a file that does not exist. Every other reason for having no content is an error.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read key material: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read key material: %w", err)
	}
	if data == nil {
		data = []byte{}
	}
	return data, nil
}

// readCert returns the certificate, or what is wrong with the file. Both are empty if the file does not exist.
func readCert(path string) (cert *x509.Certificate, bad string, err error) {
	data, err := read(path)
	if data == nil || err != nil {
		return nil, "", err
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, path + " is damaged: it contains no PEM certificate", nil
	}
	if cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return nil, path + " is damaged: its certificate cannot be parsed", nil //nolint:nilerr // reported in bad
	}
	return cert, "", nil
}

// readKey is readCert for a private key. A key that other users may read is bad, and open is true. The result never contains the
// error of a parser, which might quote the key.
func readKey(path string) (key crypto.Signer, open bool, bad string, err error) {
	data, err := read(path)
	if data == nil || err != nil {
		return nil, false, "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, false, "", fmt.Errorf("read mode of key: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, true, readableByOthers(path, info.Mode()), nil
	}
	if key = parseKey(data); key == nil {
		return nil, false, path + " is damaged: it contains no readable private key", nil
	}
	return key, false, "", nil
}

func readableByOthers(path string, mode fs.FileMode) string {
	return fmt.Sprintf("other users may read %s (mode %04o, want 0600)", path, mode.Perm())
}

// refuseOpen is the error for a secret that other users may read and that cannot be replaced.
func refuseOpen(bad string) error {
	return fmt.Errorf("%s: other users may have a copy of it. If that is impossible, set its mode to 0600 to continue", bad)
}

// parseKey returns the first private key in PEM text, or nil. Other blocks may come before it, such as the curve parameters of a
// SEC 1 file.
func parseKey(data []byte) crypto.Signer {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return nil
		}
		switch block.Type {
		case "PRIVATE KEY":
			key, _ := x509.ParsePKCS8PrivateKey(block.Bytes)
			signer, _ := key.(crypto.Signer)
			return signer
		case "EC PRIVATE KEY":
			if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
				return key
			}
			return nil
		case "RSA PRIVATE KEY": // the key of a CA that the user has provided
			if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
				return key
			}
			return nil
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// maxFile bounds what is read: the largest file of this package is a few kilobytes.
const maxFile = 1 << 20

// read returns nil for a file that does not exist; any other reason for having no bytes is an error.
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

// readCert returns the certificate, or what is wrong with the file; both are empty when the file does not exist.
func readCert(path string) (cert *x509.Certificate, bad string, err error) {
	data, err := read(path)
	if data == nil || err != nil {
		return nil, "", err
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, path + " is damaged: it holds no PEM certificate", nil
	}
	if cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return nil, path + " is damaged: its certificate cannot be read", nil //nolint:nilerr // told in bad
	}
	return cert, "", nil
}

// readKey is readCert for a private key; a key that others may read counts as bad, and open says so. No reason that a parser
// gives is passed on: it might quote the key.
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
		return nil, true, openKey(path, info.Mode()), nil
	}
	if key = parseKey(data); key == nil {
		return nil, false, path + " is damaged: it holds no readable private key", nil
	}
	return key, false, "", nil
}

func openKey(path string, mode fs.FileMode) string {
	return fmt.Sprintf("%s may be read by others (mode %04o, must be 0600)", path, mode.Perm())
}

// refuseOpen is the answer where the key cannot be made anew.
func refuseOpen(bad string) error {
	return fmt.Errorf("%s. Whoever could read it may have a copy: if nobody can have, set its mode to 0600 and go on", bad)
}

// parseKey reads the first private key of PEM text; nil when there is none. A SEC1 file may start with its curve's parameters.
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
		case "RSA PRIVATE KEY": // a CA that the user brought
			if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
				return key
			}
			return nil
		}
	}
}

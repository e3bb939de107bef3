// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/durable"
)

// keyPair is a private key and the file of public keys that verifies what it signed. The public file may hold further keys:
// tokens that an earlier private key signed are verified with them.
type keyPair struct {
	key                   crypto.Signer
	keyExists, pubExists  bool
	keyOpen               bool   // what is wrong with the key is its mode
	keyBad, pubBad, other string // other: the public file holds keys, and not this one
}

func readKeyPair(w pki.Want) (k keyPair, err error) {
	if k.key, k.keyOpen, k.keyBad, err = readKey(w.KeyPath); err != nil {
		return keyPair{}, err
	}
	k.keyExists = k.key != nil || k.keyBad != ""
	data, err := read(w.CertPath)
	if err != nil {
		return keyPair{}, err
	}
	k.pubExists = data != nil
	keys := parsePublic(data)
	switch {
	case k.pubExists && len(keys) == 0:
		k.pubBad = w.CertPath + " is damaged: it holds no public key"
	case k.key != nil && k.pubExists:
		k.other = "no key of " + w.CertPath + " belongs to " + w.KeyPath
		for _, pub := range keys {
			if sameKey(pub, k.key.Public()) {
				k.other = ""
			}
		}
	}
	return k, nil
}

func parsePublic(data []byte) (keys []crypto.PublicKey) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return keys
		}
		if pub, err := x509.ParsePKIXPublicKey(block.Bytes); err == nil {
			keys = append(keys, pub)
		}
	}
}

func checkKeyPair(w pki.Want) (ok, exists bool, detail string, err error) {
	k, err := readKeyPair(w)
	if err != nil {
		return false, false, "", err
	}
	switch {
	case k.keyBad != "":
		detail = k.keyBad
	case !k.keyExists:
		detail = w.KeyPath + " does not exist"
	case !k.pubExists:
		detail = w.CertPath + " does not exist, although its private key " + w.KeyPath + " does"
	case k.pubBad != "":
		detail = k.pubBad
	case k.other != "":
		detail = k.other
	}
	return detail == "", k.keyExists || k.pubExists, detail, nil
}

// ensureKeyPair makes the private key once; the public file follows from it.
func (l *Local) ensureKeyPair(w pki.Want) error {
	k, err := readKeyPair(w)
	if err != nil {
		return err
	}
	switch {
	case k.keyOpen:
		return refuseOpen(k.keyBad)
	case k.keyBad != "", k.other != "", !k.keyExists && k.pubExists:
		why := k.keyBad + k.other
		if why == "" {
			why = w.KeyPath + " does not exist, although its public key " + w.CertPath + " does"
		}
		return fmt.Errorf("%s. It is never made a second time, because every token signed by it would be worthless. Restore %s and %s "+
			"from a backup or from another control-plane machine; only if this cluster has never run, remove both files", why, w.KeyPath, w.CertPath)
	case !k.keyExists:
		if err := permitted(w); err != nil {
			return err
		}
		key, err := newKey()
		if err != nil {
			return err
		}
		if err := l.writeKey(w.KeyPath, key); err != nil {
			return err
		}
		k.key = key
	case k.pubExists && k.pubBad == "":
		return nil
	}
	der, err := x509.MarshalPKIXPublicKey(k.key.Public())
	if err != nil {
		return errors.New("encode public key")
	}
	if err := durable.WriteFile(w.CertPath, 0o644, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})); err != nil {
		return err
	}
	return l.wrote("public key written")
}

const secretSize = 32

func checkSecret(w pki.Want) (ok, exists bool, detail string, err error) {
	exists, _, detail, err = readSecret(w.KeyPath)
	return exists && detail == "" && err == nil, exists, detail, err
}

// readSecret tells what is wrong with a secret, never what is in it.
func readSecret(path string) (exists, open bool, bad string, err error) {
	data, err := read(path)
	if err != nil {
		return false, false, "", err
	}
	if data == nil {
		return false, false, path + " does not exist", nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return false, false, "", fmt.Errorf("read mode of secret: %w", err)
	}
	switch {
	case len(data) != secretSize:
		return true, false, fmt.Sprintf("%s is damaged: it has %d bytes, must have %d", path, len(data), secretSize), nil
	case info.Mode().Perm()&0o077 != 0:
		return true, true, openKey(path, info.Mode()), nil
	}
	return true, false, "", nil
}

func (l *Local) ensureSecret(w pki.Want) error {
	exists, open, detail, err := readSecret(w.KeyPath)
	switch {
	case err != nil, exists && detail == "":
		return err
	case exists && open:
		return refuseOpen(detail)
	case exists:
		return fmt.Errorf("%s. It is never made a second time, because what it encrypted could never be read again: restore %s from a backup "+
			"or from another control-plane machine", detail, w.KeyPath)
	}
	if err := permitted(w); err != nil {
		return err
	}
	data := make([]byte, secretSize)
	if _, err := rand.Read(data); err != nil {
		return fmt.Errorf("make secret: %w", err)
	}
	if err := durable.WriteFile(w.KeyPath, 0o600, data); err != nil {
		return err
	}
	return l.wrote("secret written")
}

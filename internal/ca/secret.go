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

// keyPair is the state of a private key and of the file with the public keys that verify its signatures. That file may contain
// further public keys, for tokens that an earlier private key has signed.
type keyPair struct {
	key                  crypto.Signer
	keyExists, pubExists bool
	keyOpen              bool   // keyBad is about the mode of the file
	keyBad, pubBad       string // what is wrong with an existing file
	mismatch             string // the public file has keys, but none of them belongs to the private key
}

// readKeyPair reads the files of a Want. After an error, their state is unknown.
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
	var keys []crypto.PublicKey
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if pub, err := x509.ParsePKIXPublicKey(block.Bytes); err == nil {
			keys = append(keys, pub)
		}
	}
	switch {
	case k.pubExists && len(keys) == 0:
		k.pubBad = w.CertPath + " is damaged: it contains no public key"
	case k.key != nil && k.pubExists:
		k.mismatch = "no key in " + w.CertPath + " belongs to " + w.KeyPath
		for _, pub := range keys {
			if sameKey(pub, k.key.Public()) {
				k.mismatch = ""
			}
		}
	}
	return k, nil
}

// checkKeyPair is Check for a key pair.
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
		detail = w.CertPath + " does not exist, but its private key " + w.KeyPath + " does"
	case k.pubBad != "":
		detail = k.pubBad
	case k.mismatch != "":
		detail = k.mismatch
	}
	return detail == "", k.keyExists || k.pubExists, detail, nil
}

// ensureKeyPair creates the private key once. The public key can always be written again.
func (l *Local) ensureKeyPair(w pki.Want) error {
	k, err := readKeyPair(w)
	if err != nil {
		return err
	}
	switch {
	case k.keyOpen:
		return refuseOpen(k.keyBad)
	case k.keyBad != "", k.mismatch != "", !k.keyExists && k.pubExists:
		why := k.keyBad + k.mismatch
		if why == "" {
			why = w.KeyPath + " does not exist, but its public key " + w.CertPath + " does"
		}
		return fmt.Errorf("%s. The key is never created again, because every token that it has signed would become invalid. Restore %s and %s "+
			"from a backup or from another control plane machine. Only if this cluster has never run, remove both files", why, w.KeyPath, w.CertPath)
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

// readSecret checks a file of random bytes. bad says what is wrong with it and never contains any of its content; open is true if
// that is the mode of the file.
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
		return true, false, fmt.Sprintf("%s is damaged: it has %d bytes, want %d", path, len(data), secretSize), nil
	case info.Mode().Perm()&0o077 != 0:
		return true, true, readableByOthers(path, info.Mode()), nil
	}
	return true, false, "", nil
}

// ensureSecret creates the secret once and never replaces it.
func (l *Local) ensureSecret(w pki.Want) error {
	exists, open, bad, err := readSecret(w.KeyPath)
	switch {
	case err != nil, exists && bad == "":
		return err
	case exists && open:
		return refuseOpen(bad)
	case exists:
		return fmt.Errorf("%s. The secret is never created again, because everything that it has encrypted would be lost. Restore %s from a backup "+
			"or from another control plane machine", bad, w.KeyPath)
	}
	if err := permitted(w); err != nil {
		return err
	}
	data := make([]byte, secretSize)
	_, _ = rand.Read(data) // never fails: crypto/rand ends the program instead
	if err := durable.WriteFile(w.KeyPath, 0o600, data); err != nil {
		return err
	}
	return l.wrote("secret written")
}

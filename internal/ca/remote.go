// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/slipway-project/slipway/internal/core/pki"
)

// Remote has certificates signed elsewhere: request is a PKCS#10 in DER that holds a public key and nothing else, the answer one
// certificate in PEM.
type Remote func(ctx context.Context, w pki.Want, request []byte) (certificate []byte, err error)

// Request makes a key for a Want whose CA is not on this machine, and the request for its certificate. Nothing is written before
// finish is given the certificate.
func (l *Local) Request(w pki.Want) (request []byte, finish func(certificate []byte) error, err error) {
	if w.Kind != pki.Leaf {
		return nil, nil, fmt.Errorf("request %s: it is no leaf", w.Name)
	}
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	request, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, nil, fmt.Errorf("request %s: %w", w.Name, err)
	}
	return request, func(certificate []byte) error { return l.finish(w, key, certificate) }, nil
}

// finish writes the pair, once the certificate has been found to be for this key and signed by the CA that is on the disk.
func (l *Local) finish(w pki.Want, key *ecdsa.PrivateKey, certificate []byte) error {
	block, rest := pem.Decode(certificate)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return fmt.Errorf("take the certificate of %s: the answer is not one certificate", w.Name)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("take the certificate of %s: %w", w.Name, err)
	}
	if !sameKey(cert.PublicKey, key.Public()) {
		return fmt.Errorf("take the certificate of %s: it is for another key", w.Name)
	}
	switch why, err := l.unfitLeaf(w, cert); {
	case err != nil:
		return fmt.Errorf("take the certificate of %s: %w", w.Name, err)
	case why != "":
		return fmt.Errorf("take the certificate of %s: %s", w.Name, why)
	}
	return l.writePair(w, cert.Raw, key)
}

// ask has a certificate signed elsewhere.
func (l *Local) ask(ctx context.Context, w pki.Want) error {
	if l.Remote == nil {
		return fmt.Errorf("its signer %s is not on this machine", w.Signer)
	}
	request, finish, err := l.Request(w)
	if err != nil {
		return err
	}
	certificate, err := l.Remote(ctx, w, request)
	if err != nil {
		return err
	}
	return finish(certificate)
}

// Sign issues a certificate for a public key that was made elsewhere; all else comes from the Want. The CA's key lies beside its
// certificate.
func (l *Local) Sign(w pki.Want, pub crypto.PublicKey) (certificate []byte, err error) {
	if w.Kind != pki.Leaf || !onP256(pub) {
		return nil, errors.New("sign: only leaves with keys on P-256 are signed")
	}
	w.SignerKey = strings.TrimSuffix(w.SignerCert, ".crt") + ".key"
	signer, key, err := readSigner(w)
	if err != nil {
		return nil, err
	}
	now, err := l.clock()
	if err != nil {
		return nil, err
	}
	der, err := signLeaf(w, pub, signer, key, now)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

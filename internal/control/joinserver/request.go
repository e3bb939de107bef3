// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/asn1"
)

// maxRequest is far more than an empty request for a P-256 key needs, and less than one for a huge key.
const maxRequest = 1024

// emptyName is an X.501 name without any part, DER.
const emptyName = "\x30\x00"

// checkRequest takes the public key out of a certificate request, which may hold nothing else. The cheap looks come first: the
// signature is checked only when the key is of the one kind that we take.
func checkRequest(der []byte) (*ecdsa.PublicKey, error) {
	if len(der) == 0 || len(der) > maxRequest {
		return nil, deny(BadRequest, "a certificate request of %d bytes, want at most %d", len(der), maxRequest)
	}
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, deny(BadRequest, "a certificate request that cannot be read: %v", err)
	}
	key, ok := r.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, deny(BadKey, "a certificate request for a key of %s (%T), want ECDSA P-256", r.PublicKeyAlgorithm, r.PublicKey)
	}
	if string(r.RawSubject) != emptyName {
		return nil, deny(BadSubject, "a certificate request with the subject %q", r.Subject.String())
	}
	if !bytes.Equal(r.RawTBSCertificateRequest, bare(r.RawSubjectPublicKeyInfo)) {
		return nil, deny(BadExtension, "a certificate request with more than a key in it: %d extensions, names %.80q", len(r.Extensions), r.DNSNames)
	}
	if r.SignatureAlgorithm != x509.ECDSAWithSHA256 {
		return nil, deny(BadProof, "a certificate request signed with %s, want %s", r.SignatureAlgorithm, x509.ECDSAWithSHA256)
	}
	if err := r.CheckSignature(); err != nil {
		return nil, deny(BadProof, "a certificate request that its key has not signed: %v", err)
	}
	return key, nil
}

// bare is what is signed in a request for this key without subject and attributes. Comparing all its bytes leaves no field that a
// parser may have overlooked.
func bare(spki []byte) []byte {
	der, err := asn1.Marshal(struct {
		Version    int
		Subject    asn1.RawValue
		Key        asn1.RawValue
		Attributes asn1.RawValue
	}{0, asn1.RawValue{FullBytes: []byte(emptyName)}, asn1.RawValue{FullBytes: spki}, asn1.RawValue{FullBytes: []byte("\xa0\x00")}})
	if err != nil {
		return nil
	}
	return der
}

// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/pki"
)

// backdate tolerates clocks of other machines that run behind this one.
const backdate = 5 * time.Minute

var extUsages = map[pki.Usage]x509.ExtKeyUsage{
	pki.ServerAuth: x509.ExtKeyUsageServerAuth,
	pki.ClientAuth: x509.ExtKeyUsageClientAuth,
}

// template returns the certificate that the Want describes, without a key.
func template(w pki.Want, now time.Time) (*x509.Certificate, error) {
	if w.Lifetime <= 0 {
		return nil, fmt.Errorf("the lifetime %s is not positive", w.Lifetime)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return nil, fmt.Errorf("choose a serial number: %w", err)
	}
	tmpl := &x509.Certificate{
		SerialNumber:          serial.Add(serial, big.NewInt(1)), // zero is not allowed
		Subject:               pkix.Name{CommonName: w.CommonName, Organization: w.Organizations},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(w.Lifetime),
		BasicConstraintsValid: true,
	}
	tmpl.DNSNames = append(tmpl.DNSNames, w.DNSNames...)
	for _, a := range w.Addresses {
		tmpl.IPAddresses = append(tmpl.IPAddresses, net.IP(a.Unmap().AsSlice()))
	}
	for _, u := range w.Usages {
		ext, ok := extUsages[u]
		if !ok {
			return nil, fmt.Errorf("unknown usage %q", u)
		}
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, ext)
	}
	return tmpl, nil
}

// sign signs a certificate for pub with the key of parent; tmpl is its own parent for a self-signed
// certificate.
func sign(tmpl, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	return der, nil
}

// differs describes how a leaf certificate differs from its Want; "" if it does not. The order of lists does not matter.
func differs(w pki.Want, cert *x509.Certificate) string {
	if why := subjectDiffers(w, cert); why != "" {
		return why
	}
	if why := setDiffers("DNS names", w.DNSNames, cert.DNSNames); why != "" {
		return why
	}
	var wantAddrs, haveAddrs []string
	for _, a := range w.Addresses {
		wantAddrs = append(wantAddrs, a.Unmap().String())
	}
	for _, ip := range cert.IPAddresses {
		a, _ := netip.AddrFromSlice(ip)
		haveAddrs = append(haveAddrs, a.Unmap().String())
	}
	if why := setDiffers("addresses", wantAddrs, haveAddrs); why != "" {
		return why
	}
	if len(cert.URIs)+len(cert.EmailAddresses) > 0 {
		return "it has URIs or email addresses"
	}
	var wantUsages []string
	for _, u := range w.Usages {
		wantUsages = append(wantUsages, string(u))
	}
	if why := setDiffers("usages", wantUsages, usageNames(cert)); why != "" {
		return why
	}
	switch {
	case cert.IsCA:
		return "it is a certificate authority"
	case cert.KeyUsage != x509.KeyUsageDigitalSignature:
		return "its key usage is not exactly digital signature"
	case cert.NotAfter.Sub(cert.NotBefore) > w.Lifetime+backdate+time.Second:
		return fmt.Sprintf("its lifetime is longer than %s", w.Lifetime)
	}
	return ""
}

// subjectDiffers is differs for the subject only. It refuses attributes that a Want cannot have, such as
// organizational units.
func subjectDiffers(w pki.Want, cert *x509.Certificate) string {
	if cert.Subject.CommonName != w.CommonName {
		return fmt.Sprintf("its name is %q, want %q", cert.Subject.CommonName, w.CommonName)
	}
	if why := setDiffers("organizations", w.Organizations, cert.Subject.Organization); why != "" {
		return why
	}
	known := len(cert.Subject.Organization)
	if cert.Subject.CommonName != "" {
		known++
	}
	if len(cert.Subject.Names) != known {
		return "its subject has more than a name and organizations"
	}
	return ""
}

// setDiffers describes the difference between two lists as sets, or returns "".
func setDiffers(what string, want, have []string) string {
	missing, extra := minus(want, have), minus(have, want)
	switch {
	case len(missing) > 0 && len(extra) > 0:
		return fmt.Sprintf("its %s lack %s and have the extra %s", what, strings.Join(missing, ", "), strings.Join(extra, ", "))
	case len(missing) > 0:
		return fmt.Sprintf("its %s lack %s", what, strings.Join(missing, ", "))
	case len(extra) > 0:
		return fmt.Sprintf("its %s have the extra %s", what, strings.Join(extra, ", "))
	}
	return ""
}

// minus is the sorted set a without b.
func minus(a, b []string) []string {
	var out []string
	for _, s := range a {
		if !slices.Contains(b, s) {
			out = append(out, s)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// usageNames returns the extended key usages of a certificate by the names that Wants use.
func usageNames(cert *x509.Certificate) []string {
	var names []string
	for _, e := range cert.ExtKeyUsage {
		name := fmt.Sprintf("usage %d", e)
		for u, known := range extUsages {
			if e == known {
				name = string(u)
			}
		}
		names = append(names, name)
	}
	for _, oid := range cert.UnknownExtKeyUsage {
		names = append(names, "usage "+oid.String())
	}
	return names
}

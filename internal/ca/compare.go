// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"crypto/x509"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/pki"
)

// differs tells in words how a leaf certificate departs from its Want, or "". Lists are compared as sets.
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
		return "it has URIs or e-mail addresses, which nobody wants"
	}
	if why := setDiffers("usages", usageNames(w), extUsageNames(cert)); why != "" {
		return why
	}
	switch {
	case cert.IsCA:
		return "it is a certificate authority and must not be"
	case cert.KeyUsage != x509.KeyUsageDigitalSignature:
		return "its key usage is not digital signature alone"
	case cert.NotAfter.Sub(cert.NotBefore) > w.Lifetime+backdate+time.Second:
		return fmt.Sprintf("it lives longer than the wanted %s", w.Lifetime)
	}
	return ""
}

func subjectDiffers(w pki.Want, cert *x509.Certificate) string {
	if cert.Subject.CommonName != w.CommonName {
		return fmt.Sprintf("its name is %q, wanted %q", cert.Subject.CommonName, w.CommonName)
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

func setDiffers(what string, want, have []string) string {
	lacks, extra := minus(want, have), minus(have, want)
	switch {
	case len(lacks) > 0 && len(extra) > 0:
		return fmt.Sprintf("its %s lack %s and have %s too many", what, strings.Join(lacks, ", "), strings.Join(extra, ", "))
	case len(lacks) > 0:
		return fmt.Sprintf("its %s lack %s", what, strings.Join(lacks, ", "))
	case len(extra) > 0:
		return fmt.Sprintf("its %s have %s too many", what, strings.Join(extra, ", "))
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

func usageNames(w pki.Want) []string {
	var names []string
	for _, u := range w.Usages {
		names = append(names, string(u))
	}
	return names
}

func extUsageNames(cert *x509.Certificate) []string {
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

// renewal says since when a certificate should have been renewed, or "".
func (l *Local) renewal(cert *x509.Certificate) string {
	if at := pki.RenewAt(cert.NotBefore, cert.NotAfter, cert.SerialNumber.Bytes()); !l.now().Before(at) {
		return "renewal due since " + day(at)
	}
	if l.isDue(cert) {
		return "its renewal was asked for"
	}
	return ""
}

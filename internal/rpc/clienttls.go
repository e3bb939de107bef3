// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	"github.com/slipway-project/slipway/internal/core/roster"
)

// ClientOptions says whom a client trusts and what it shows. Exactly one of Pin, CAPin and CA must be set.
type ClientOptions struct {
	Pin   string            // of the server's own key. Names and times of its certificate are ignored: only the key counts
	CAPin string            // of the key of the CA that the server's chain ends in: leaf, CA
	CA    *x509.Certificate // which has signed the server's certificate

	Certificate *tls.Certificate                                            // optional: the client's own
	ServerName  string                                                      // optional for Dial: name or IP that the server's certificate must hold (CAPin, CA)
	Dialer      func(ctx context.Context, address string) (net.Conn, error) // optional
	Now         func() time.Time                                            // optional
	AnyTime     bool                                                        // optional: the times of certificates do not count (CAPin, CA); for asking what time it is, and for nothing else
	Message     int                                                         // optional: the most bytes of one answer; 16 MiB
}

// untrustedMark begins the text of every [Untrusted]; gRPC keeps nothing of an error but its text.
const untrustedMark = "server not trusted: "

// Untrusted says why the server at the other end is not the one that was asked for. To ask it again is no use.
type Untrusted struct{ Reason string }

func (u *Untrusted) Error() string { return untrustedMark + u.Reason }

// IsUntrusted tells whether a call failed because the server is not the right one, in contrast to one that is not there.
func IsUntrusted(err error) bool {
	if err == nil {
		return false
	}
	var u *Untrusted
	return errors.As(err, &u) || strings.Contains(status.Convert(err).Message(), untrustedMark)
}

// clockMark is in the text of every [Untrusted] whose reason is a time.
const clockMark = "the clock here says"

// IsUntimely tells whether a server was not trusted because one of the two clocks is wrong, or its certificate too old; or whether
// the server itself has said so of its own clock (see [WrongClock]).
func IsUntimely(err error) bool { return err != nil && strings.Contains(err.Error(), clockMark) }

// WrongClock is what a server says for whom [IsUntimely] is to hold.
func WrongClock(now time.Time, why string) string {
	return clockMark + " " + now.UTC().Format(time.RFC3339) + ": " + why
}

func untrusted(format string, a ...any) error { return &Untrusted{fmt.Sprintf(format, a...)} }

// check finds mistakes of the caller.
func (o ClientOptions) check() error {
	kinds := 0
	for _, set := range []bool{o.Pin != "", o.CAPin != "", o.CA != nil} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		return fmt.Errorf("exactly one of the server's pin, its CA's pin and its CA must be given, not %d", kinds)
	}
	if o.Pin == "" && o.ServerName == "" {
		return errors.New("the server's name or address must be given")
	}
	return nil
}

// ClientTLS is TLS 1.3 with ALPN "h2", without session resumption. It trusts what o says and nothing else: with contradictory
// options, nobody.
func ClientTLS(o ClientOptions) *tls.Config {
	c := base()
	c.InsecureSkipVerify = true // VerifyConnection does all of it: the roots of the system mean nothing here
	c.ServerName = o.ServerName
	c.Time = o.Now
	if o.Certificate != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return o.Certificate, nil }
	}
	c.VerifyConnection = o.verify
	return c
}

func (o ClientOptions) verify(s tls.ConnectionState) error {
	if err := o.check(); err != nil {
		return err
	}
	if s.NegotiatedProtocol != alpn {
		return untrusted("it does not offer the protocol %s (ALPN)", alpn)
	}
	chain := s.PeerCertificates
	if len(chain) == 0 || len(chain) > 2 {
		return untrusted("it shows %d certificates", len(chain))
	}
	for _, c := range chain {
		if err := checkKey(c); err != nil {
			return untrusted("%v", err)
		}
	}
	switch {
	case o.Pin != "":
		return verifyPin(chain[0], o.Pin, "its key")
	case o.CAPin != "":
		if len(chain) != 2 {
			return untrusted("it does not show its CA")
		}
		if err := verifyPin(chain[1], o.CAPin, "the key of its CA"); err != nil {
			return err
		}
		return o.verifyLeaf(chain[0], chain[1])
	}
	return o.verifyLeaf(chain[0], o.CA)
}

func verifyPin(c *x509.Certificate, want, what string) error {
	got := roster.Pin(c.RawSubjectPublicKeyInfo)
	if subtle.ConstantTimeCompare([]byte(got), []byte(want)) != 1 {
		return untrusted("%s is %s, not %s", what, got, want)
	}
	return nil
}

// verifyLeaf checks the times first: a wrong clock is the likeliest mistake, and x509's words for it name one time only.
func (o ClientOptions) verifyLeaf(leaf, ca *x509.Certificate) error {
	now := time.Now
	if o.Now != nil {
		now = o.Now
	}
	if o.AnyTime {
		now = func() time.Time { return leaf.NotBefore }
	}
	if !ca.BasicConstraintsValid || !ca.IsCA || ca.KeyUsage&x509.KeyUsageCertSign == 0 {
		return untrusted("what it calls its CA is none")
	}
	if err := CheckTimes(leaf, ca, now()); err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	_, err := leaf.Verify(x509.VerifyOptions{
		DNSName: o.ServerName, Roots: roots, CurrentTime: now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return untrusted("%v", err)
	}
	return nil
}

// CheckTimes is nil when both certificates of a server are good at this time.
func CheckTimes(leaf, ca *x509.Certificate, now time.Time) error {
	if err := verifyTime(leaf, now, "its certificate"); err != nil {
		return err
	}
	return verifyTime(ca, now, "the certificate of its CA")
}

func verifyTime(c *x509.Certificate, now time.Time, what string) error {
	at := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	switch {
	case now.Before(c.NotBefore):
		return untrusted("%s is valid from %s, and "+clockMark+" %s: set the clock of this machine or of the server", what, at(c.NotBefore), at(now))
	case now.After(c.NotAfter):
		return untrusted("%s was valid until %s, and "+clockMark+" %s: set the clock, or renew it", what, at(c.NotAfter), at(now))
	}
	return nil
}

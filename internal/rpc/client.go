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
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/slipway-project/slipway/internal/core/pin"
)

const maxReply = 16 << 20 // bytes: a plan with all its files

// ClientOptions says which server a client trusts and which certificate it presents. Exactly one of Pin, CAPin and CA must be set.
type ClientOptions struct {
	Pin   pin.Pin           // pin of the server's key. Names and validity of the certificate are ignored
	CAPin pin.Pin           // pin of the key of the CA; the server must present the chain leaf, CA
	CA    *x509.Certificate // CA that has signed the server's certificate

	Certificate *tls.Certificate                                            // optional: the client's own certificate
	ServerName  string                                                      // name or IP address that the server's certificate must have (CAPin, CA). Dial's default: the host of its target
	Dialer      func(ctx context.Context, address string) (net.Conn, error) // optional
	Now         func() time.Time                                            // optional
	AnyTime     bool                                                        // ignore the validity of certificates (CAPin, CA). Only for asking a server for its time
	Message     int                                                         // optional: maximum bytes of a reply. Default: 16 MiB
}

// Untrusted is the error of a call or a handshake if the server is not the one that the client wants to talk to. Retrying does
// not help. As a gRPC status it has the code Unavailable.
type Untrusted struct {
	Reason string
	Clock  bool // the certificate is not valid at this time: one of the two clocks may be wrong
}

func (u *Untrusted) Error() string { return "server not trusted: " + u.Reason }

// GRPCStatus gives the error the code of a server that cannot be reached.
func (u *Untrusted) GRPCStatus() *status.Status { return status.New(codes.Unavailable, u.Error()) }

func untrusted(format string, a ...any) error { return &Untrusted{Reason: fmt.Sprintf(format, a...)} }

// IsUntrusted reports whether a call failed because the server is the wrong one, as opposed to one that cannot be reached.
func IsUntrusted(err error) bool {
	var u *Untrusted
	return errors.As(err, &u)
}

// IsWrongClock reports whether a call failed because of a clock: the server's certificate is not valid at the client's time, or
// the server has refused the call because of its own clock (see [Refusal]).
func IsWrongClock(err error) bool {
	var u *Untrusted
	if errors.As(err, &u) {
		return u.Clock
	}
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain && info.GetReason() == wrongClockReason {
			return true
		}
	}
	return false
}

// Dial returns a connection to target, "host:port". It connects at the first call. A call fails with the reason if the server
// cannot be reached or is not trusted (see [IsUntrusted]), unless it is made with grpc.WaitForReady.
func Dial(target string, o ClientOptions) (*grpc.ClientConn, error) {
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", target, err)
	}
	if o.ServerName == "" {
		o.ServerName = host
	}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("dial %s: %w", target, err)
	}
	if o.Message == 0 {
		o.Message = maxReply
	}
	if o.Dialer == nil {
		o.Dialer = func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}
	}
	last := &lastAttempt{}
	conn, err := grpc.NewClient("passthrough:///"+target,
		grpc.WithTransportCredentials(clientCredentials{credentials.NewTLS(ClientTLS(o)), last}),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.Message)),
		// gRPC's default first delay is a second, too long for a server that is just starting.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 10 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithUserAgent("slipway"),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := o.Dialer(ctx, address)
			if err != nil {
				last.untrusted.Store(nil)
			}
			return conn, err
		}),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return last.explain(invoke(ctx, method, request, reply, cc, opts...))
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := open(ctx, d, cc, method, opts...)
			return stream, last.explain(err)
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", target, err)
	}
	return conn, nil
}

// lastAttempt remembers whether the last attempt to connect failed because the server is not trusted. gRPC makes the attempts in
// the background and passes on only the text of their errors.
type lastAttempt struct {
	untrusted atomic.Pointer[Untrusted]
}

// explain replaces the error of a call that had no connection.
func (l *lastAttempt) explain(err error) error {
	if u := l.untrusted.Load(); u != nil && status.Code(err) == codes.Unavailable {
		return u
	}
	return err
}

// clientCredentials reports the result of each handshake to last.
type clientCredentials struct {
	credentials.TransportCredentials
	last *lastAttempt
}

// ClientHandshake is called by gRPC for each connection.
func (c clientCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	u, _ := errors.AsType[*Untrusted](err)
	c.last.untrusted.Store(u)
	return conn, info, err
}

// Clone returns credentials that report to the same place.
func (c clientCredentials) Clone() credentials.TransportCredentials {
	return clientCredentials{c.TransportCredentials.Clone(), c.last}
}

// check finds mistakes of the caller.
func (o ClientOptions) check() error {
	kinds := 0
	for _, set := range []bool{o.Pin != "", o.CAPin != "", o.CA != nil} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		return fmt.Errorf("got %d of the server's pin, its CA's pin and its CA, want exactly one", kinds)
	}
	if o.Pin == "" && o.ServerName == "" {
		return errors.New("the server's name or address is missing")
	}
	return nil
}

// ClientTLS returns a configuration for TLS 1.3 with ALPN "h2" and without session resumption. It trusts only the server that o
// describes; with contradictory options, it trusts no server. Its handshakes fail with an [Untrusted] error.
func ClientTLS(o ClientOptions) *tls.Config {
	c := baseTLS()
	c.InsecureSkipVerify = true // VerifyConnection does the verification: the system's roots must not count
	c.ServerName = o.ServerName
	c.Time = o.Now
	if o.Certificate != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return o.Certificate, nil }
	}
	c.VerifyConnection = o.verify
	return c
}

// verify checks the server's certificates during the handshake. It returns an *Untrusted error, except for
// contradictory options.
func (o ClientOptions) verify(s tls.ConnectionState) error {
	if err := o.check(); err != nil {
		return err
	}
	if s.NegotiatedProtocol != alpn {
		return untrusted("it does not offer the protocol %s (ALPN)", alpn)
	}
	chain := s.PeerCertificates
	if len(chain) == 0 || len(chain) > 2 {
		return untrusted("it presents %d certificates", len(chain))
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
			return untrusted("it does not present its CA")
		}
		if err := verifyPin(chain[1], o.CAPin, "the key of its CA"); err != nil {
			return err
		}
		return o.verifyLeaf(chain[0], chain[1])
	}
	return o.verifyLeaf(chain[0], o.CA)
}

func verifyPin(c *x509.Certificate, want pin.Pin, what string) error {
	got := pin.OfCertificate(c)
	if subtle.ConstantTimeCompare([]byte(got), []byte(want)) != 1 {
		return untrusted("%s is %s, not %s", what, got, want)
	}
	return nil
}

// verifyLeaf checks the validity first: a wrong clock is the most likely cause, and x509's error does not show both times.
func (o ClientOptions) verifyLeaf(leaf, ca *x509.Certificate) error {
	now := time.Now
	if o.Now != nil {
		now = o.Now
	}
	if o.AnyTime {
		now = func() time.Time { return leaf.NotBefore }
	}
	if !ca.BasicConstraintsValid || !ca.IsCA || ca.KeyUsage&x509.KeyUsageCertSign == 0 {
		return untrusted("the certificate that it presents as its CA is not a CA")
	}
	if err := CheckValidity(leaf, ca, now()); err != nil {
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

// CheckValidity returns an *Untrusted error unless the certificates of a server and its CA are both valid at the given time.
func CheckValidity(leaf, ca *x509.Certificate, now time.Time) error {
	at := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	for _, c := range []struct {
		*x509.Certificate
		name string
	}{{leaf, "its certificate"}, {ca, "the certificate of its CA"}} {
		switch {
		case now.Before(c.NotBefore):
			return &Untrusted{Clock: true, Reason: fmt.Sprintf("%s is valid from %s, but the local clock says %s (set the clock of this machine or of the server)", c.name, at(c.NotBefore), at(now))}
		case now.After(c.NotAfter):
			return &Untrusted{Clock: true, Reason: fmt.Sprintf("%s was valid until %s, but the local clock says %s (set the clock, or renew the certificate)", c.name, at(c.NotAfter), at(now))}
		}
	}
	return nil
}

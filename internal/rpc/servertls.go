// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"crypto/tls"
	"fmt"
)

// ClientAuth says what a client must show of itself.
type ClientAuth int

// The zero value lets nobody in, for it was forgotten.
const (
	NoClients ClientAuth = iota + 1 // no client certificate: the calls themselves prove who calls
	AnyKey                          // exactly one certificate; its key is the identity, nothing else in it counts
)

const maxServerName = 253 // the longest name that DNS knows

// ServerTLS is TLS 1.3 with ALPN "h2" and without session tickets. The certificate is asked for at each handshake, so that
// a renewed one is used at once.
func ServerTLS(certificate func() (*tls.Certificate, error), clients ClientAuth) *tls.Config {
	c := base()
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate() }
	c.GetConfigForClient = checkHello
	c.ClientAuth = tls.NoClientCert
	if clients != NoClients {
		c.ClientAuth = tls.RequireAnyClientCert
	}
	c.VerifyConnection = func(s tls.ConnectionState) error { return checkClient(s, clients) }
	return c
}

func base() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{alpn},
		CurvePreferences:       []tls.CurveID{tls.X25519MLKEM768, tls.X25519, tls.CurveP256},
		SessionTicketsDisabled: true,
		Renegotiation:          tls.RenegotiateNever,
	}
}

// checkHello refuses before anything is computed.
func checkHello(h *tls.ClientHelloInfo) (*tls.Config, error) {
	if len(h.ServerName) > maxServerName {
		return nil, fmt.Errorf("the server name that the client asks for has %d bytes", len(h.ServerName))
	}
	return nil, nil
}

// checkClient runs before the client's signature is verified: an unfit key costs nothing.
func checkClient(s tls.ConnectionState, clients ClientAuth) error {
	if s.NegotiatedProtocol != alpn {
		return fmt.Errorf("the client does not offer the protocol %s (ALPN)", alpn)
	}
	if s.DidResume {
		return fmt.Errorf("the client resumes a session")
	}
	switch n := len(s.PeerCertificates); {
	case clients == NoClients && n == 0:
		return nil
	case clients != AnyKey:
		return fmt.Errorf("this server lets no client in: %d certificates", n)
	case n != 1:
		return fmt.Errorf("the client shows %d certificates, not exactly one", n)
	}
	return checkKey(s.PeerCertificates[0])
}

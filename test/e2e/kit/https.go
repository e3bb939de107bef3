// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Credential is what a request or its connection carries.
type Credential func(c *Cluster, r *http.Request, conf *tls.Config)

// BearerToken is a bearer token.
func BearerToken(token string) Credential {
	return func(_ *Cluster, r *http.Request, _ *tls.Config) { r.Header.Set("Authorization", "Bearer "+token) }
}

// ServerName asks for the server under another name, for which its certificate has to be valid too.
func ServerName(name string) Credential {
	return func(_ *Cluster, _ *http.Request, conf *tls.Config) { conf.ServerName = name }
}

// Certificate is a client certificate of the machine: path.crt and path.key below Data.
func Certificate(path string) Credential {
	return func(c *Cluster, _ *http.Request, conf *tls.Config) {
		pair, err := tls.X509KeyPair(c.Read(path+".crt"), c.Read(path+".key"))
		if err != nil {
			c.T.Fatal(err)
		}
		// Given whatever the server says of the CAs that it trusts: it is the server that has to refuse.
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
}

// HTTPS asks a component of the machine, from within the machine's network, and checks its certificate. Code 0 means that
// the server ended the connection instead of answering, and body says how. Everything else fails the test.
func (c *Cluster) HTTPS(t testing.TB, method, url string, credentials ...Credential) (code int, body string) {
	t.Helper()
	cas := x509.NewCertPool()
	for _, ca := range []string{"pki/ca.crt", "pki/etcd/ca.crt"} {
		cas.AppendCertsFromPEM(c.Read("etc-kubernetes", ca))
	}
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	conf := &tls.Config{RootCAs: cas, MinVersion: tls.VersionTLS12}
	for _, add := range credentials {
		add(c, r, conf)
	}
	transport := &http.Transport{DialContext: c.Dial, TLSClientConfig: conf}
	defer transport.CloseIdleConnections()
	reply, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(r)
	if err != nil {
		if strings.Contains(err.Error(), "remote error: tls:") {
			return 0, err.Error()
		}
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(io.LimitReader(reply.Body, 1<<20))
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return reply.StatusCode, string(text)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"go.yaml.in/yaml/v3"

	"github.com/slipway-project/slipway/internal/proxy"
)

// api asks the API server through the machine's socket, over one connection that is kept.
type api struct{ http *http.Client }

// kubeconfig is the part of the file that Slipway writes.
type kubeconfig struct {
	Clusters []struct {
		Cluster struct {
			CA string `yaml:"certificate-authority-data"`
		}
	}
	Users []struct {
		User struct {
			Cert string `yaml:"client-certificate-data"`
			Key  string `yaml:"client-key-data"`
		}
	}
}

func connect(socket, credential string) (api, error) {
	text, err := os.ReadFile(credential)
	if err != nil {
		return api{}, err
	}
	var k kubeconfig
	if err := yaml.Unmarshal(text, &k); err != nil || len(k.Clusters) == 0 || len(k.Users) == 0 {
		return api{}, errors.Join(errors.New("read kubeconfig: no cluster or no user"), err)
	}
	pem := func(s string) []byte {
		out, _ := base64.StdEncoding.DecodeString(s) // damage shows below
		return out
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem(k.Clusters[0].Cluster.CA))
	cert, err := tls.X509KeyPair(pem(k.Users[0].User.Cert), pem(k.Users[0].User.Key))
	if err != nil {
		return api{}, fmt.Errorf("read kubeconfig: %w", err)
	}
	return api{&http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, ServerName: "kubernetes", MinVersion: tls.VersionTLS12},
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return proxy.DialUnix(ctx, socket) },
		ForceAttemptHTTP2: true,
	}}}, nil
}

// do returns the answer, whatever its status. The caller closes it.
func (a api) do(ctx context.Context, method, path, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "https://kubernetes"+path, bytes.NewBufferString(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	return a.http.Do(r)
}

// ask returns status and body; status 0 means that nobody answered.
func (a api) ask(ctx context.Context, method, path, body string) (int, string) {
	r, err := a.do(ctx, method, path, body)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	text, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return 0, err.Error()
	}
	return r.StatusCode, string(text)
}

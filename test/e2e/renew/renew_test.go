// SPDX-License-Identifier: Apache-2.0

// Package renew_test renews all certificates of a cluster of three control planes, and edits a flag of its API servers, while a client with
// ordinary retries works. The client loses no request, only what must restart does, and never two control planes at the same time.
package renew_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

const soon = 2 * time.Minute // far longer than any step takes

func TestRenew(t *testing.T) {
	c := kit.New(t, "renew")
	c.MustUp("--control-planes", "3", "--workers", "1")
	c.AllReady(soon, 3, 1)
	c.Part(t, "every certificate is renewed under load", renewAll)
	c.Part(t, "a flag of the API servers is edited under load", editAPIServer)
}

func mains(c *kit.Cluster) []string { return []string{c.Main(0), c.Main(1), c.Main(2)} }

// pids returns the PIDs of the units that do not exit by themselves, by machine and name.
func pids(c *kit.Cluster) map[string]int {
	c.T.Helper()
	out := map[string]int{}
	for _, m := range c.Machines() {
		units, err := c.On(m).Units()
		if err != nil {
			c.T.Fatal(err)
		}
		for name, pid := range kit.Steady(units) {
			out[m+" "+name] = pid
		}
	}
	return out
}

// served maps the ports of a control plane to the files of their certificates.
var served = map[string]string{
	"6443": "apiserver.crt", "2379": "etcd/server.crt", "2380": "etcd/peer.crt", "10257": "controller-manager.crt", "10259": "scheduler.crt",
	"9440": "join-server.crt",
}

func renewAll(c *kit.Cluster) {
	worker := c.On(c.Worker(0)) // its clients reach the API through the balancer
	load := startLoad(worker, "renewed")
	before, old, replacements := pids(c), serials(c), replaced(c)
	r := c.Must("certs", "renew", "--all", "--output", "json")
	var done []struct {
		Node         string   `json:"node"`
		Certificates []string `json:"certificates"`
		Restarted    []string `json:"restarted"`
	}
	if err := json.Unmarshal([]byte(r.Out), &done); err != nil {
		c.T.Fatalf("read what was renewed: %v: %s", err, r)
	}
	for _, d := range done {
		if len(d.Restarted) > 0 || len(d.Certificates) < 2 {
			c.T.Errorf("%s: got %v renewed and %v restarted, want at least two and none", d.Node, d.Certificates, d.Restarted)
		}
	}
	if len(done) != 4 {
		c.T.Errorf("nodes with renewed certificates: got %d, want 4: %s", len(done), r)
	}
	for file, serial := range serials(c) {
		if old[file] == serial {
			c.T.Errorf("serial number of %s: got %s as before, want a new one", file, serial)
		}
	}
	for _, m := range mains(c) {
		for port, file := range served {
			testkit.Until(c.T, soon, m+" serves its new "+file, func() error { return serves(c.On(m), port, file) })
		}
	}
	c.AllReady(soon, 3, 1)
	if diff := cmp.Diff(before, pids(c)); diff != "" {
		c.T.Errorf("processes (- before, + after):\n%s", diff)
	}
	if diff := cmp.Diff(replacements, replaced(c)); diff != "" {
		c.T.Errorf("replaced units (- before, + after):\n%s", diff)
	}
	load.end(c)
}

// serials returns the serial numbers of the control planes' certificates, by machine and file.
func serials(c *kit.Cluster) map[string]string {
	c.T.Helper()
	out := map[string]string{}
	for _, m := range mains(c) {
		for _, file := range served {
			cert := onDisk(c.On(m), file)
			out[m+" "+file] = cert.SerialNumber.String()
		}
	}
	return out
}

func onDisk(c *kit.Cluster, file string) *x509.Certificate {
	c.T.Helper()
	block, _ := pem.Decode(c.Read("etc-kubernetes", "pki", file))
	if block == nil {
		c.T.Fatalf("read certificate %s of %s: no PEM block", file, c.Node)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		c.T.Fatal(err)
	}
	return cert
}

// serves checks that a port presents the certificate on the disk in its TLS handshake.
func serves(c *kit.Cluster, port, file string) error {
	nodes, err := c.Nodes()
	if err != nil {
		return err
	}
	host := "127.0.0.1"
	if port == "2380" { // etcd's peer port does not listen on loopback
		addresses := nodes[c.Node].Addresses
		if len(addresses) == 0 {
			return fmt.Errorf("node %s has no address", c.Node)
		}
		host = addresses[0]
	}
	ctx, cancel := context.WithTimeout(c.T.Context(), 5*time.Second)
	defer cancel()
	conn, err := c.Dial(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return err
	}
	defer conn.Close()
	var seen *x509.Certificate
	client := tls.Client(conn, &tls.Config{
		InsecureSkipVerify: true, // only the serial number matters here
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) (err error) {
			seen, err = x509.ParseCertificate(raw[0])
			return err
		},
	})
	err = client.HandshakeContext(ctx) // may fail after the server has sent its certificate
	if seen == nil {
		return fmt.Errorf("port %s sends no certificate: %w", port, err)
	}
	if want := onDisk(c, file).SerialNumber; seen.SerialNumber.Cmp(want) != 0 {
		return fmt.Errorf("serial number at port %s: got %v, want %v", port, seen.SerialNumber, want)
	}
	return nil
}

// replaced returns the units that each machine's agent has replaced because they differed from the plan, in order. It ignores processes
// that exit by themselves, as a leader does when it cannot reach its API server for ten seconds.
func replaced(c *kit.Cluster) map[string][]string {
	c.T.Helper()
	out := map[string][]string{}
	for _, m := range c.Machines() {
		for line := range strings.Lines(string(c.On(m).Read("log", "slipway", "agent.log"))) {
			_, rest, is := strings.Cut(line, "verb=replace item=unit/")
			if is && strings.Contains(line, `msg="step done"`) {
				unit, _, _ := strings.Cut(rest, " ")
				out[m] = append(out[m], unit)
			}
		}
	}
	return out
}

const edited = `apiVersion: slipway.dev/v1alpha1
kind: Cluster
metadata: {name: %s}
spec:
  components: {apiserver: {flags: {audit-log-maxage: "7"}}}
  pools:
  - {name: main, roles: [control-plane, worker], count: 3}
  - {name: worker, roles: [worker], count: 1}
`

// editAPIServer edits a flag of the API servers: only they restart, each once, one after the other.
func editAPIServer(c *kit.Cluster) {
	stored, err := os.ReadFile(filepath.Join(kit.Root, "clusters", c.Name, "cluster.yaml"))
	if err != nil {
		c.T.Fatal(err)
	}
	text := fmt.Sprintf(edited, c.Name)
	if !strings.Contains(string(stored), "roles: [control-plane, worker]") {
		text = strings.Replace(text, "roles: [control-plane, worker]", "roles: [control-plane]", 1)
	}
	file := c.Spec(text)
	if r := c.Slipway("diff", "--file", file); r.Code != 1 || strings.Count(r.Out, "rolling  replace unit/kube-apiserver") != 3 || !strings.Contains(r.Out, " 0 restart, 3 rolling") {
		c.T.Errorf("slipway diff: want exit code 1 and three rolling API servers, got %s", r)
	}
	load := startLoad(c.On(c.Worker(0)), "edited")
	watch := startWatch(c)
	before := replaced(c)
	c.MustUp("--file", file)
	c.AllReady(soon, 3, 1)
	restarts := watch.end()
	load.end(c)
	var changed []string
	for m, units := range replaced(c) {
		for _, unit := range units[len(before[m]):] {
			changed = append(changed, m+" "+unit)
		}
	}
	slices.Sort(changed)
	var want []string
	for _, m := range mains(c) {
		want = append(want, m+" kube-apiserver")
		if restarts[m] < 1 { // it may exit by itself, too; the number of replacements is checked below
			c.T.Errorf("restarts of the API server of %s: got none, want at least 1", m)
		}
	}
	if diff := cmp.Diff(want, changed); diff != "" {
		c.T.Errorf("replaced units (-want +got):\n%s", diff)
	}
	if r := c.Slipway("diff"); r.Code != 0 {
		c.T.Errorf("slipway diff after up: want exit code 0, got %s", r)
	}
}

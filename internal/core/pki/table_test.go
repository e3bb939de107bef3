// SPDX-License-Identifier: Apache-2.0

package pki_test

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/pki"
)

var update = flag.Bool("update", false, "rewrite testdata")

func params() pki.Params {
	return pki.Params{
		Dir: "/pki", Cluster: "dev", Node: "n1", Address: netip.MustParseAddr("192.0.2.10"), ServiceIP: netip.MustParseAddr("10.96.0.1"),
		Domain: "cluster.local", ExtraNames: []string{"api.example.org"}, ExtraAddrs: []netip.Addr{netip.MustParseAddr("203.0.113.9")},
		CALife: 10 * 365 * 24 * time.Hour, LeafLife: 365 * 24 * time.Hour,
	}
}

func table() []pki.Want { return append(pki.ControlPlane(params()), pki.Worker(params())...) }

// TestTable holds the whole certificate table to testdata/table.txt, so that a change of a name or a usage is seen in review.
func TestTable(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, w := range table() {
		fmt.Fprintf(&b, "%s (%s)\n", w.Name, w.Kind)
		line := func(what string, v any) {
			if text := strings.Trim(fmt.Sprint(v), "[]"); text != "" && text != "0s" {
				fmt.Fprintf(&b, "  %-8s %s\n", what, text)
			}
		}
		line("CN", w.CommonName)
		line("O", w.Organizations)
		line("names", w.DNSNames)
		line("addrs", w.Addresses)
		line("for", w.Usages)
		line("signer", w.Signer)
		line("life", w.Lifetime)
		line("cert", w.CertPath)
		line("key", w.KeyPath)
		line("CA cert", w.SignerCert)
		line("CA key", w.SignerKey)
	}
	const file = "testdata/table.txt"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestTableIsSound(t *testing.T) {
	t.Parallel()
	byName, files := map[string]pki.Want{}, map[string]string{}
	for _, w := range table() {
		if _, twice := byName[w.Name]; twice {
			t.Errorf("%s is there twice", w.Name)
		}
		byName[w.Name] = w
		for _, file := range []string{w.CertPath, w.KeyPath} {
			if other, taken := files[file]; taken && file != "" {
				t.Errorf("%s is of %s and of %s", file, other, w.Name)
			}
			files[file] = w.Name
		}
		if w.KeyPath == "" {
			t.Errorf("%s has no place for its key", w.Name)
		}
		if w.Kind != pki.Leaf {
			if w.Signer+w.SignerCert+w.SignerKey != "" {
				t.Errorf("%s is not a leaf and has a signer", w.Name)
			}
			continue
		}
		ca, before := byName[w.Signer]
		if !before || ca.Kind != pki.CA {
			t.Errorf("%s is signed by %q, which is not a CA listed before it", w.Name, w.Signer)
		}
		if w.SignerCert != ca.CertPath || w.SignerKey != ca.KeyPath {
			t.Errorf("%s is signed with %s and %s, which are not the files of %s", w.Name, w.SignerCert, w.SignerKey, ca.Name)
		}
		if w.Lifetime <= 0 || w.Lifetime >= ca.Lifetime || len(w.Usages) == 0 || w.CommonName == "" || w.CertPath == "" {
			t.Errorf("%s lacks something: %+v", w.Name, w)
		}
		if slices.Contains(w.Usages, pki.ServerAuth) != (len(w.DNSNames)+len(w.Addresses) > 0) {
			t.Errorf("%s: a server has names, a client has none: %v %v %v", w.Name, w.Usages, w.DNSNames, w.Addresses)
		}
	}
}

// Who may get into etcd, and who is a cluster administrator, is decided here and nowhere else.
func TestTrust(t *testing.T) {
	t.Parallel()
	etcd, masters := []string{}, []string{}
	for _, w := range table() {
		if w.Signer == pki.EtcdCA {
			etcd = append(etcd, w.Name)
		}
		if slices.Contains(w.Organizations, "system:masters") {
			masters = append(masters, w.Name)
		}
		node := strings.HasPrefix(w.CommonName, "system:node:") || slices.Contains(w.Organizations, "system:nodes")
		if node && (w.Signer != pki.ClusterCA || slices.Contains(w.Usages, pki.ServerAuth)) {
			t.Errorf("%s, a kubelet's identity, is signed by %s for %v", w.Name, w.Signer, w.Usages)
		}
		if w.Signer == pki.FrontProxyCA && w.Name != "front-proxy-client" {
			t.Errorf("%s is signed by the front proxy's CA", w.Name)
		}
	}
	if diff := cmp.Diff([]string{"apiserver-etcd-client", "etcd-server", "etcd-peer", "etcd-healthcheck-client"}, etcd); diff != "" {
		t.Errorf("signed by etcd's CA (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"super-admin"}, masters); diff != "" {
		t.Errorf("in system:masters (-want +got):\n%s", diff)
	}
	for _, w := range pki.Worker(params()) {
		if w.Signer != pki.ClusterCA {
			t.Errorf("a worker's %s is signed by %s", w.Name, w.Signer)
		}
	}
}

func TestTablesShareNothing(t *testing.T) {
	t.Parallel()
	p := params()
	p.ExtraNames = append(make([]string, 0, 8), "a") // room to be written over
	first := pki.ControlPlane(p)
	second := pki.ControlPlane(p)
	first[6].DNSNames[0] = "changed"
	if second[6].DNSNames[0] != "n1" || p.ExtraNames[0] != "a" {
		t.Error("two tables share their names")
	}
}

func TestRenewAt(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	for name, tc := range map[string]struct {
		life   time.Duration
		serial []byte
		want   time.Duration
	}{
		"hours":           {9 * time.Hour, nil, 6 * time.Hour},
		"short":           {3 * time.Second, nil, 2 * time.Second},
		"nothing":         {0, []byte{1, 2, 3}, 0},
		"decades":         {99 * 365 * day, []byte{7, 0, 0}, 66 * 365 * day},
		"half a skew":     {300 * day, []byte{1, 0x80, 0}, 190 * day},
		"a short serial":  {300 * day, []byte{0x80}, 200*day - 20*day/512},
		"the whole of it": {300 * day, []byte{0xff, 0xff}, 180*day + 20*day/(1<<16)},
	} {
		got := pki.RenewAt(begin, begin.Add(tc.life), tc.serial).Sub(begin)
		if off := (got - tc.want).Abs(); off > time.Second {
			t.Errorf("%s: renewed after %s, want %s", name, got, tc.want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package tickets_test

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/control"
	"github.com/slipway-project/slipway/internal/control/tickets"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
)

const spec = "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\nspec:\n  pools:\n" +
	"  - {name: main, roles: [control-plane], count: 3}\n  - {name: w, count: 1}\n"

// shared returns the paths of the files that all control planes share.
func shared() []string {
	return []string{
		"/etc/kubernetes/pki/ca.crt", "/etc/kubernetes/pki/ca.key", "/etc/kubernetes/pki/encryption.key", "/etc/kubernetes/pki/etcd/ca.crt",
		"/etc/kubernetes/pki/etcd/ca.key", "/etc/kubernetes/pki/front-proxy-ca.crt", "/etc/kubernetes/pki/front-proxy-ca.key",
		"/etc/kubernetes/pki/join-ca.crt", "/etc/kubernetes/pki/join-ca.key", "/etc/kubernetes/pki/sa.key", "/etc/kubernetes/pki/sa.pub",
	}
}

func maker(t *testing.T) tickets.Maker {
	t.Helper()
	c, release, problems, err := compose.Cluster("spec", []byte(spec), compose.Options{})
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	components := map[string]string{}
	for _, component := range release.Components {
		for _, b := range component.Binaries {
			components[b.Name] = "sha256:00"
		}
	}
	for _, i := range release.Images() {
		components[i.Name] = "sha256:00"
	}
	root := t.TempDir()
	for _, path := range append(shared(), "/etc/kubernetes/pki/apiserver.key") {
		if err := os.MkdirAll(filepath.Dir(root+path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+path, []byte("content of "+path), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return tickets.Maker{
		ID: "id", Root: root, Roster: func() []byte { return []byte("roster") },
		Desired: control.Desired{
			Document: control.Document{Version: control.Version, Cluster: "dev", Self: "dev-main-0", Spec: config.Print(c), Components: components}, Config: c,
		},
	}
}

func paths(files []plan.TicketFile) []string {
	var out []string
	for _, f := range files {
		out = append(out, f.Path)
	}
	slices.Sort(out)
	return out
}

// A worker gets no secret of the control plane; a control plane gets all of them, and none outside of the sealed part.
func TestFor(t *testing.T) {
	t.Parallel()
	m := maker(t)
	common := []string{"/etc/kubernetes/pki/ca.crt", "/etc/kubernetes/pki/join-ca.crt", config.RosterFile}

	ticket, secret, err := m.For(t.Context(), admission.Node{Name: "dev-w-0", Pool: "w", Index: 3, Address: netip.MustParseAddr("192.0.2.3")})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(common, paths(ticket.Files)); diff != "" || len(secret) > 0 || ticket.Control != nil {
		t.Errorf("a worker gets %v in secret, a document of %d bytes, and (-want +got):\n%s", paths(secret), len(ticket.Control), diff)
	}
	if _, ok := ticket.Plan.Find("unit/etcd"); ok || ticket.Plan.Node != "dev-w-0" || ticket.Cluster != "id" {
		t.Errorf("plan of %s in %s, with etcd: %t", ticket.Plan.Node, ticket.Cluster, ok)
	}

	ticket, secret, err = m.For(t.Context(), admission.Node{Name: "dev-main-2", Pool: "main", Index: 2, Address: netip.MustParseAddr("192.0.2.2")})
	if err != nil {
		t.Fatal(err)
	}
	want := slices.DeleteFunc(shared(), func(path string) bool { return slices.Contains(common, path) })
	if diff := cmp.Diff(want, paths(secret)); diff != "" {
		t.Errorf("a control plane's secrets (-want +got):\n%s", diff)
	}
	for _, f := range secret {
		if string(f.Content) != "content of "+f.Path || strings.HasSuffix(f.Path, ".key") && f.Mode != 0o600 {
			t.Errorf("%s has mode %o and %q", f.Path, f.Mode, f.Content)
		}
	}
	wire, err := json.Marshal(ticket)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(wire), "ca.key\",\"mode\"") || diffCommon(ticket) != "" {
		t.Errorf("in the open: %s", diffCommon(ticket))
	}
	doc, err := control.Decode(ticket.Control)
	if err != nil || doc.Self != "dev-main-2" {
		t.Errorf("the document is %q's: %v", doc.Self, err)
	}
	if m.Desired.Self != "dev-main-0" {
		t.Error("making a ticket has changed the maker's own document")
	}
}

func diffCommon(t plan.Ticket) string {
	return cmp.Diff([]string{"/etc/kubernetes/pki/ca.crt", "/etc/kubernetes/pki/join-ca.crt", config.RosterFile}, paths(t.Files))
}

// Whatever is missing, there is an error and no half of a ticket.
func TestForRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spoil func(m *tickets.Maker)
		want  string
	}{
		"no roster":   {func(m *tickets.Maker) { m.Roster = func() []byte { return nil } }, "no roster yet"},
		"no pool":     {func(m *tickets.Maker) { m.Desired.Config.Pools = nil }, "make ticket of dev-main-1"},
		"no binary":   {func(m *tickets.Maker) { m.Desired.Components = nil }, "the bundle has no"},
		"no CA":       {func(m *tickets.Maker) { _ = os.Remove(m.Root + "/etc/kubernetes/pki/ca.crt") }, "ca.crt"},
		"no CA's key": {func(m *tickets.Maker) { _ = os.Remove(m.Root + "/etc/kubernetes/pki/etcd/ca.key") }, "etcd/ca.key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := maker(t)
			tc.spoil(&m)
			_, secret, err := m.For(t.Context(), admission.Node{Name: "dev-main-1", Pool: "main", Index: 1, Address: netip.MustParseAddr("192.0.2.1")})
			if err == nil || !strings.Contains(err.Error(), tc.want) || len(secret) > 0 {
				t.Errorf("%v with %d secrets, want %q", err, len(secret), tc.want)
			}
		})
	}
}

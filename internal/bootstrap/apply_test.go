// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/bundle"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/operate"
	"github.com/slipway-project/slipway/internal/provider/ssh"
	"github.com/slipway-project/slipway/internal/sshhost"
)

func applyOf(t *testing.T, inv inventory.Inventory, spec string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: far}\n"+spec), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Apply(t.Context(), inv, ApplyOptions{Source: clusterdir.Source{File: file}})
	return err
}

func TestApplyRefusesBeforeItReachesAnyMachine(t *testing.T) {
	t.Parallel()
	const listed = "spec: {pools: [{name: a, roles: [control-plane], machines: [{name: m, address: 192.0.2.1}]}]}\n"
	for name, tc := range map[string]struct {
		spec string
		make string // a directory
		want string
	}{
		"no pools":                {"", "", "spec.pools is missing"},
		"a pool without machines": {"spec: {pools: [{name: a, roles: [control-plane]}]}\n", "", "pool a lists no machines"},
		"a cluster of this host":  {listed, "machines/far", "slipway up --name far"},
		"an empty store":          {listed, "", "slipway bundle build"},
	} {
		inv := newInventory(t.TempDir())
		if err := os.MkdirAll(filepath.Join(inv.Dir.Root, tc.make), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := applyOf(t, inv, tc.spec); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// The record makes a cluster one of existing machines, for every command. Their names are known without a connection.
func TestRemoteClustersAreNotLocal(t *testing.T) {
	t.Parallel()
	inv := newInventory(t.TempDir())
	inv.SSH = sshhost.Config{Home: t.TempDir(), Timeout: time.Second}
	record := ssh.Record{Machines: []ssh.Machine{
		{Name: "m", Address: netip.MustParseAddr("127.0.0.1"), SSH: sshhost.Target{Name: "m", Host: "127.0.0.1", Port: 1}},
		{Name: "gone", Address: netip.MustParseAddr("127.0.0.2")},
	}}
	machines := ssh.New(t.Context(), ssh.Config{Dir: inv.Dir, Cluster: "far", Record: record, SSH: inv.SSH, Log: inv.Log})
	if err := machines.Remove(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	if is, err := inv.IsRemote("far"); err != nil || !is {
		t.Errorf("is remote: %t, %v", is, err)
	}
	if names, err := inv.Names(t.Context(), "far"); err != nil || len(names) != 1 || names[0] != "m" {
		t.Errorf("machines %v, %v", names, err)
	}
	if _, err := Up(t.Context(), inv, UpOptions{Source: clusterdir.Source{Name: "far"}}); err == nil || !strings.Contains(err.Error(), "slipway apply") {
		t.Errorf("up: %v", err)
	}
	err := Down(t.Context(), inv, "far", false, nil)
	if err == nil || !strings.Contains(err.Error(), "slipway node reset") {
		t.Errorf("down: %v", err)
	}
	if is, err := inv.IsRemote("far"); err != nil || !is {
		t.Errorf("down with an unreachable machine: got remote %t, %v, want an error and the record kept", is, err)
	}
	if _, err := operate.StopMachine(t.Context(), inv, "far", "m"); err == nil || !strings.Contains(err.Error(), "not on this host: log in to it yourself: ssh -p 1 root@127.0.0.1") {
		t.Errorf("machine stop: %v", err)
	}
	_, err = operate.Exec(t.Context(), inv, "far", "", machine.Command{Args: []string{"ps", "ax"}})
	if err == nil || !strings.Contains(err.Error(), "ssh -p 1 root@127.0.0.1 'ps ax'") {
		t.Errorf("exec: %v", err)
	}
	if err := operate.RemoteLog(t.Context(), inv, "far", "", "kubelet", -1, false, io.Discard); err == nil || !strings.Contains(err.Error(), "is unreachable") {
		t.Errorf("logs: %v", err)
	}
	s, err := operate.Status(t.Context(), inv, "far")
	if err != nil || s.Ready || !strings.Contains(s.Verdict, "is unreachable") {
		t.Errorf("status %+v, %v", s, err)
	}
	if err := machines.Remove(t.Context(), "m"); err != nil {
		t.Fatal(err)
	}
	if r, _, err := ssh.LoadRecord(inv.Dir, "far"); err != nil || len(r.Machines) != 0 {
		t.Errorf("record %+v, %v", r, err)
	}
}

// Apply uploads to a machine each file of the release that its plan needs, and no other, for every form of control plane.
func TestApplySendsWhatAPlanNeeds(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"HostUnits", "StaticPods"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			c := mustComplete(t, `spec:
  controlPlane: {form: `+form+`}
  pools:
  - {name: cp, roles: [control-plane], machines: [{name: c1, address: 192.0.2.1}, {name: c2, address: 192.0.2.2}, {name: c3, address: 192.0.2.3}]}
  - {name: w, roles: [worker], machines: [{name: w1, address: 192.0.2.4}]}
`)
			built := artifact.Bundle{Binaries: map[string]artifact.Blob{}, Images: map[string]artifact.Blob{}}
			n := 0
			blob := func() artifact.Blob {
				n++
				d, err := artifact.ParseDigest(fmt.Sprintf("sha256:%064d", n))
				if err != nil {
					t.Fatal(err)
				}
				return artifact.Blob{Digest: d, Size: 1}
			}
			for _, component := range c.Release.Components {
				for _, b := range component.Binaries {
					built.Binaries[b.Name] = blob()
				}
			}
			for _, i := range c.Release.Images() {
				built.Images[i.Name] = blob()
			}
			components := bundle.Digests(built)
			all := specTargets(c.Config)
			for _, m := range all {
				m.facts.Address = netip.MustParseAddr("192.0.2.9")
			}
			for _, m := range all {
				d, err := all.plan(c.Config, m.Name, components)
				if err != nil {
					t.Fatal(err)
				}
				sent := map[string]bool{}
				for _, b := range neededParts(d.plan, built) {
					sent[b.Digest.String()] = true
				}
				takes := map[string]bool{}
				for _, e := range d.plan.Entries {
					if f, ok := e.Item.(plan.Artifact); ok {
						takes[f.Digest] = true
						if !sent[f.Digest] {
							t.Errorf("upload to %s: got no %s", m.Name, f.Name)
						}
					}
				}
				if len(sent) != len(takes) || len(takes) < 5 {
					t.Errorf("upload to %s: got %d files, want %d", m.Name, len(sent), len(takes))
				}
			}
		})
	}
}

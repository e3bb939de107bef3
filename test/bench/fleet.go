// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/launch"
	"github.com/slipway-project/slipway/internal/machine"
)

// main and worker are the names that slipway up gives.
func (b *bench) main(i int) string   { return fmt.Sprintf("%s-main-%d", b.cluster, i) }
func (b *bench) worker(i int) string { return fmt.Sprintf("%s-worker-%d", b.cluster, i) }

// up makes a cluster of so many machines, or brings it to that.
func (b *bench) up(ctx context.Context, controlPlanes, workers int) result {
	return b.command(ctx, "up", "--name", b.cluster, "--control-planes", fmt.Sprint(controlPlanes), "--workers", fmt.Sprint(workers))
}

// through is the API as programs of the machine reach it: its own API server, or its balancer.
func (b *bench) through(node string) (api, error) {
	return connect(filepath.Join(b.place.local.RunDir(b.cluster, node), "api.sock"), b.credential())
}

// credential is the first control plane's; it stays on the disk when the machine is stopped.
func (b *bench) credential() string {
	return filepath.Join(b.place.local.DataDir(b.cluster, b.main(0), "etc-kubernetes"), "super-admin.conf")
}

// readyNodes waits until so many nodes are Ready at once, or the named ones are.
func (a api) readyNodes(ctx context.Context, count int, names ...string) error {
	ready := map[string]bool{}
	return a.follow(ctx, "/api/v1/nodes", func(o object) bool {
		ready[o.Metadata.Name] = o.ready()
		have := 0
		for _, is := range ready {
			if is {
				have++
			}
		}
		for _, name := range names {
			if !ready[name] {
				return false
			}
		}
		return have >= count
	})
}

// kill ends a unit of a machine as a crash would.
func (b *bench) kill(node, unit string) error {
	group, err := findCgroup(filepath.Join("slipway", b.cluster, node))
	if err != nil {
		return err
	}
	pids, err := group.units()[unit].pids()
	if err != nil || len(pids) == 0 {
		return errors.Join(fmt.Errorf("kill %s of %s: it does not run", unit, node), err)
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			return fmt.Errorf("kill %s of %s: %w", unit, node, err)
		}
	}
	return nil
}

// lose cuts a machine off, so that no connection is closed with a last word, and pulls its plug.
func (b *bench) lose(ctx context.Context, node string) error {
	_, cut := b.launcher.MachineCut(ctx, b.cluster, node, "")
	_, stop := b.launcher.MachineStop(ctx, b.cluster, node)
	return errors.Join(cut, stop)
}

func (b *bench) bringBack(ctx context.Context, node string) error {
	_, heal := b.launcher.MachineHeal(ctx, b.cluster, node)
	_, start := b.launcher.MachineStart(ctx, b.cluster, node)
	return errors.Join(heal, start)
}

// leads is the control plane whose etcd leads, when all members answer.
func (b *bench) leads(ctx context.Context) (string, error) {
	var said []struct {
		Endpoint string
		Status   struct {
			Leader uint64
			Header struct {
				ID uint64 `json:"member_id"`
			}
		}
	}
	if err := b.etcdctl(ctx, &said, "endpoint", "status", "--cluster"); err != nil {
		return "", err
	}
	machines, err := b.launcher.MachineList(ctx, b.cluster)
	if err != nil {
		return "", err
	}
	for _, m := range machines {
		for _, s := range said {
			if s.Endpoint == "https://"+netip.AddrPortFrom(m.Address, 2379).String() && s.Status.Header.ID == s.Status.Leader {
				return m.Name, nil
			}
		}
	}
	return "", errors.New("find etcd's leader: nobody says that it leads")
}

// etcdctl asks through the first control plane, and fails when a member does not answer.
func (b *bench) etcdctl(ctx context.Context, answer any, args ...string) error {
	const pki = "/etc/kubernetes/pki/etcd/"
	var out, complaint bytes.Buffer
	code, err := b.launcher.Exec(ctx, b.cluster, b.main(0), machine.Command{
		Args: append([]string{
			"/opt/slipway/bin/etcdctl", "--endpoints=https://127.0.0.1:2379", "--cacert=" + pki + "ca.crt", "--cert=" + pki + "healthcheck-client.crt",
			"--key=" + pki + "healthcheck-client.key", "--write-out=json",
		}, args...), Stdout: &out, Stderr: &complaint,
	})
	if err != nil || code != 0 {
		return errors.Join(fmt.Errorf("etcdctl %v ended with %d: %s", args, code, complaint.Bytes()), err)
	}
	return json.Unmarshal(out.Bytes(), answer)
}

// settled waits until every machine says that all on it is ready: what is measured next begins in peace.
func (b *bench) settled(ctx context.Context, nodes ...string) error {
	for _, node := range nodes {
		agent, err := launch.DialAgent(ctx, filepath.Join(b.place.local.RunDir(b.cluster, node), "agent.sock"))
		if err != nil {
			return err
		}
		err = poll(ctx, 4*step, func() bool {
			s, err := agent.Status(ctx)
			return err == nil && s.Converged
		})
		if err := errors.Join(err, agent.Close()); err != nil {
			return fmt.Errorf("wait for %s: %w", node, err)
		}
	}
	return nil
}

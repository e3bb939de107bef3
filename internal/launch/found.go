// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/initclient"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/node/initserver"
	"github.com/slipway-project/slipway/internal/sleep"
)

// founding is what this host remembers of the init that it has begun, so that an up that was broken off takes it up again.
type founding struct {
	ID      string `json:"id"` // of the request
	Machine string `json:"machine"`
	Secret  string `json:"secret"`
}

const foundingSchema = 1

// machineSecret is where a machine finds by what it knows its initialiser, below its folder /var/lib/slipway.
const machineSecret = "init-secret.json"

func (u *up) foundingFile() string {
	return filepath.Join(u.clusterDir(u.cluster.Name), "init.json")
}

// prepareFounder gives the machine that is to make the cluster its init secret before it boots. Nothing happens when a cluster
// has been made.
func (u *up) prepareFounder(ctx context.Context, machines provider, all fleet) error {
	var f founding
	err := durable.Load(u.foundingFile(), foundingSchema, &f)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read what init was begun: %w: if the cluster stands, remove that file and its .prev; if not, slipway down --name %s", err, u.cluster.Name)
	}
	if err == nil {
		u.founding = f
		return u.giveSecret(ctx, machines)
	}
	first, err := all.founder()
	if err != nil {
		return err
	}
	if first.phase == committedPhase || u.wasMade(ctx, machines, first.Name) {
		return nil // the machine has been made, and the cluster with it
	}
	secret, _ := initserver.NewSecret()
	f = founding{ID: requestID("up"), Machine: first.Name, Secret: secret}
	if err := os.MkdirAll(u.clusterDir(u.cluster.Name), 0o700); err != nil {
		return fmt.Errorf("keep what init was begun: %w", err)
	}
	if err := durable.Save(u.foundingFile(), foundingSchema, f); err != nil {
		return fmt.Errorf("keep what init was begun: %w", err)
	}
	u.founding = f
	return u.giveSecret(ctx, machines)
}

// wasMade tells whether a machine has had an agent before. A folder alone is no evidence: somebody may have mounted a disk there.
func (u *up) wasMade(ctx context.Context, machines provider, name string) bool {
	i := slices.IndexFunc(u.machines, func(m machine.Status) bool { return m.Name == name })
	if i < 0 {
		return false
	}
	if u.machines[i].Address.IsValid() {
		return true
	}
	_, err := machines.At(name).Read(ctx, machineState+"state/machine.key") // its record is lost, or it never had one
	return !errors.Is(err, fs.ErrNotExist)
}

// giveSecret lays beside a machine that has never had a plan what it needs to know its initialiser.
func (u *up) giveSecret(ctx context.Context, machines provider) error {
	at := machines.At(u.founding.Machine)
	if _, err := at.Read(ctx, planFile); err == nil {
		return nil
	}
	if err := at.Give(ctx, machineSecret, initserver.SecretFile(u.founding.Secret)); err != nil {
		return fmt.Errorf("give %s its init secret: %w", u.founding.Machine, err)
	}
	return nil
}

// requestID names a new request to make a cluster, by the command that asks.
func requestID(command string) string {
	raw := make([]byte, 8)
	_, _ = rand.Read(raw) // never fails
	return command + "-" + hex.EncodeToString(raw)
}

// found hands the first machine the request to make the cluster.
func (u *up) found(ctx context.Context, machines provider, all fleet, first *member) error {
	switch u.founding.Machine {
	case first.Name:
	case "":
		return fmt.Errorf("machine %s was in a cluster before and is free now, and no up has given it an init secret: slipway down --name %s, then up again",
			first.Name, u.cluster.Name)
	default:
		return fmt.Errorf("machine %s is to make the cluster, and this host has given the init secret to %s: slipway down --name %s, then up again",
			first.Name, u.founding.Machine, u.cluster.Name)
	}
	d, err := u.decide(all, first)
	if err != nil {
		return err
	}
	client, err := u.dialInit(ctx, machines, first)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // nothing is lost with it
	limited, cancel := context.WithTimeout(ctx, u.handOverLimit())
	defer cancel()
	if _, err := client.Init(limited, u.founding.ID, d.founding()); err != nil {
		return fmt.Errorf("initialise %s: %w", first.Name, err)
	}
	u.changed()
	u.report(Event{Stage: StagePlan, Machine: first.Name, Text: fmt.Sprintf("%d items", len(d.plan.Entries)), Total: len(d.plan.Entries)})
	return nil
}

// founding is the ticket by which the machine makes the cluster.
func (d decided) founding() plan.Ticket {
	return plan.Ticket{Version: plan.Version, Plan: d.plan, Control: d.doc, Files: founderFiles(d.node)}
}

// founderFiles are the permits of the one machine that makes a cluster.
func founderFiles(n config.Node) []plan.TicketFile {
	return []plan.TicketFile{
		{Path: config.CreatePermit, Mode: 0o600, Content: []byte("made by init\n")},
		{Path: config.EtcdPermit, Mode: 0o600, Content: planner.EtcdPermit(n)},
		{Path: config.EtcdVoter, Mode: 0o600, Content: []byte("made by init\n")},
	}
}

// decide plans for one machine. The spec is kept once nothing can refuse it any more, and before any machine knows of it.
func (u *up) decide(all fleet, m *member) (decided, error) {
	d, err := all.decide(u.cluster.Config, m.Name, u.components)
	if err != nil {
		return decided{}, err
	}
	u.kept = true
	return d, u.keepSpec(u.cluster)
}

// dialInit reaches a machine's init service through its unix socket, and trusts the key that the machine's provider knows.
func (u *up) dialInit(ctx context.Context, machines provider, m *member) (*initclient.Client, error) {
	return initclient.Dial(ctx, net.JoinHostPort(m.address().String(), fmt.Sprint(config.InitPort)), m.key, u.founding.Secret,
		func(ctx context.Context, _, _ string) (net.Conn, error) {
			return machines.At(m.Name).Dial(ctx, initSock)
		})
}

// forgetFounding: the secret has done its work.
func (u *up) forgetFounding() error {
	for _, path := range []string{u.foundingFile(), u.foundingFile() + ".prev"} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// joinCA is the certificate by which a cluster is known, on its control planes.
const joinCA = config.JoinCA + ".crt"

// pin is that of the cluster's join CA, as its first machine has it on the disk; it is made within a moment of the plan's start.
func (u *up) pin(ctx context.Context, machines provider, first string) (string, error) {
	for {
		text, err := machines.At(first).Read(ctx, joinCA)
		if err == nil {
			return pinOf(joinCA, text)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("read the join CA: %w", err)
		}
		if err := sleep.For(ctx, 10*time.Millisecond); err != nil {
			return "", fmt.Errorf("wait for the join CA of %s: %w", first, err)
		}
	}
}

func pinOf(path string, text []byte) (string, error) {
	cert, err := pki.Certificate(path, text)
	if err != nil {
		return "", fmt.Errorf("read the join CA: %w", err)
	}
	return string(pin.OfCertificate(cert)), nil
}

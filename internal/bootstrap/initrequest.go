// SPDX-License-Identifier: Apache-2.0

package bootstrap

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
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/initclient"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/node/initserver"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/sleep"
)

// initRequest is the request to create the cluster that this host has begun. It is stored, so that a run that was interrupted
// is continued with the same request, and removed when the cluster exists.
type initRequest struct {
	ID      string `json:"id"`
	Machine string `json:"machine"` // the bootstrap node
	Secret  string `json:"secret"`  // its init secret
}

const initRequestSchema = 1

// newRequestID names a new request by the command that makes it.
func newRequestID(command string) string {
	raw := make([]byte, 8)
	_, _ = rand.Read(raw) // never fails
	return command + "-" + hex.EncodeToString(raw)
}

func (e *engine) initRequestFile() string { return e.inv.Dir.Path(e.cluster.Name, "init.json") }

func (e *engine) saveInitRequest() error {
	path := e.initRequestFile()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("store the init request: %w", err)
	}
	if err := durable.Save(path, initRequestSchema, e.init); err != nil {
		return fmt.Errorf("store the init request: %w", err)
	}
	return nil
}

// forgetInitRequest removes the request once the cluster exists: its secret is no longer needed.
func (e *engine) forgetInitRequest() error {
	for _, path := range []string{e.initRequestFile(), e.initRequestFile() + ".prev"} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// prepareInit gives the bootstrap node its init secret before it boots. It does nothing when the cluster has been created.
func (e *engine) prepareInit(ctx context.Context, all targets) error {
	err := durable.Load(e.initRequestFile(), initRequestSchema, &e.init)
	switch {
	case err == nil:
		return e.writeInitSecret(ctx)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("read the init request: %w: if the cluster is running, remove that file and its .prev; if not, run slipway down --name %s", err, e.cluster.Name)
	}
	first, err := all.bootstrapNode()
	if err != nil {
		return err
	}
	if first.Phase == lock.Committed || e.hadAgent(ctx, first.Name) {
		return nil
	}
	secret, _ := initserver.NewSecret()
	e.init = initRequest{ID: newRequestID("up"), Machine: first.Name, Secret: secret}
	if err := e.saveInitRequest(); err != nil {
		return err
	}
	return e.writeInitSecret(ctx)
}

// hadAgent reports whether a machine has had an agent before. Its directory alone does not prove that: a disk may be mounted
// there.
func (e *engine) hadAgent(ctx context.Context, name string) bool {
	i := slices.IndexFunc(e.existing, func(m machine.Status) bool { return m.Name == name })
	if i < 0 {
		return false
	}
	if e.existing[i].Address.IsValid() {
		return true
	}
	// The machine's record is lost, or was never written.
	_, err := e.machines.Host(name).Read(ctx, provider.StateDir+"state/machine.key")
	return !errors.Is(err, fs.ErrNotExist)
}

// writeInitSecret writes the secret's hash into the bootstrap node, unless that has a plan and so recognized its initializer.
func (e *engine) writeInitSecret(ctx context.Context) error {
	host := e.machines.Host(e.init.Machine)
	if _, err := host.Read(ctx, provider.PlanFile); err == nil {
		return nil
	}
	if err := host.Write(ctx, provider.InitSecret, initserver.SecretFile(e.init.Secret)); err != nil {
		return fmt.Errorf("write the init secret of %s: %w", e.init.Machine, err)
	}
	return nil
}

// requestInit sends the bootstrap node the request to create the cluster. Sending it again is harmless.
func (e *engine) requestInit(ctx context.Context, all targets, first *target) error {
	switch e.init.Machine {
	case first.Name:
	case "":
		return fmt.Errorf("machine %s was in a cluster before and is free now, and has not been given an init secret: run slipway down --name %s, then slipway up again",
			first.Name, e.cluster.Name)
	default:
		return fmt.Errorf("machine %s is to create the cluster, but the init secret was given to %s: run slipway down --name %s, then slipway up again",
			first.Name, e.init.Machine, e.cluster.Name)
	}
	p, err := e.plan(all, first)
	if err != nil {
		return err
	}
	client, err := e.dialInit(ctx, first)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // loses nothing
	limited, cancel := e.limitAgent(ctx)
	defer cancel()
	if _, err := client.Init(limited, e.init.ID, p.ticket()); err != nil {
		return fmt.Errorf("initialize %s: %w", first.Name, err)
	}
	e.changed()
	e.planned(first.Name, len(p.plan.Entries))
	return nil
}

// dialInit connects to a machine's init service through its unix socket. The machine's key is the one that its agent reported
// through the provider.
func (e *engine) dialInit(ctx context.Context, t *target) (*initclient.Client, error) {
	host := e.machines.Host(t.Name)
	return initclient.Dial(ctx, net.JoinHostPort(t.address().String(), fmt.Sprint(config.InitPort)), t.Key, e.init.Secret,
		func(ctx context.Context, _, _ string) (net.Conn, error) { return host.Dial(ctx, provider.InitSocket) })
}

// awaitInit waits until the cluster has been created. It does not wait for a single machine if the run does not wait.
func (e *engine) awaitInit(ctx context.Context, first *target) error {
	if first.Phase == lock.Committed || e.wait == 0 && !e.several {
		return nil
	}
	client, err := e.dialInit(ctx, first)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // loses nothing
	// Another run may have fetched the answer, which ends the init service. Then the machine itself says that it is committed.
	watching, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		if staysCommitted(watching, first) {
			stop(errCommitted)
		}
	}()
	_, err = client.Watch(watching, e.init.ID, func(initclient.Event) {})
	var failed *initclient.FailedError
	switch {
	case errors.As(err, &failed):
		e.init.ID = newRequestID("up") // the next attempt is a new request
		return errors.Join(fmt.Errorf("initialize %s: %w: fix the cause and run slipway up again", first.Name, err), e.saveInitRequest())
	case err != nil && !errors.Is(context.Cause(watching), errCommitted) && !first.isCommitted(ctx):
		return fmt.Errorf("initialize %s: %w", first.Name, err)
	}
	first.Phase = lock.Committed
	_ = client.Done(ctx, e.init.ID) // otherwise the machine deletes the answer later
	return e.forgetInitRequest()
}

var errCommitted = errors.New("the machine is committed")

// staysCommitted returns true when the machine has been committed for a second, so that an answer that is under way arrives
// first, and false when ctx ends.
func staysCommitted(ctx context.Context, t *target) bool {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for seen := 0; seen < 2; {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		if seen++; !t.isCommitted(ctx) {
			seen = 0
		}
	}
	return true
}

// joinCAFile is the certificate by which a cluster is recognized, on its control planes.
const joinCAFile = config.JoinCA + ".crt"

// awaitPin is the pin of the cluster's join CA, which the bootstrap node creates as soon as it has its plan.
func (e *engine) awaitPin(ctx context.Context, first string) (pin.Pin, error) {
	for {
		p, err := e.joinCAPin(ctx, first)
		if !errors.Is(err, fs.ErrNotExist) {
			return p, err
		}
		if err := sleep.For(ctx, 10*time.Millisecond); err != nil {
			return "", fmt.Errorf("wait for the join CA of %s: %w", first, err)
		}
	}
}

// joinCAPin is the pin of the cluster's join CA; fs.ErrNotExist if it has not been created yet.
func (e *engine) joinCAPin(ctx context.Context, first string) (pin.Pin, error) {
	text, err := e.machines.Host(first).Read(ctx, joinCAFile)
	if err != nil {
		return "", fmt.Errorf("read the join CA: %w", err)
	}
	cert, err := pki.Certificate(joinCAFile, text)
	if err != nil {
		return "", fmt.Errorf("read the join CA: %w", err)
	}
	return pin.OfCertificate(cert), nil
}

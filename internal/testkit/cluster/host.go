// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/node"
)

// host is a machine as its agent sees it. Processes are in memory (backend/fake), files are on the machine's disk, keys
// are in the real custody, and etcd and the API server are those of the simulated cluster.
type host struct{ *agent }

var _ node.Host = host{}

// Observe implements reconcile.Host.
func (h host) Observe(ctx context.Context, e plan.Entry) (plan.State, error) {
	if err := h.alive(); err != nil {
		return plan.State{}, err
	}
	switch it := e.Item.(type) {
	case plan.Cert:
		ok, there, detail, err := h.custody.local.Check(ctx, rebase(h.root, it.Want))
		if err != nil {
			return plan.State{}, err
		}
		return state(there, ok, ok, detail), nil
	case plan.File, plan.Kubeconfig:
		path, want := content(it)
		have, err := os.ReadFile(h.root + path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return plan.State{}, err
		}
		same := err == nil && string(have) == want
		return state(err == nil, same, same, "the content differs"), nil
	case plan.Dir:
		there := exists(h.root + it.Path)
		return state(there, there, there, ""), nil
	case plan.Precondition:
		open := exists(h.root + it.Ready.Path)
		return state(true, true, open, it.Ready.Path+" does not exist"), nil
	case plan.Unit:
		if it.Name == "etcd" || it.Name == "kube-apiserver" {
			return h.observeUnit(ctx, it)
		}
	}
	return h.m.processes.Observe(ctx, e)
}

func state(there, matches, ready bool, detail string) plan.State {
	if !there {
		return plan.State{Existence: plan.Absent, Detail: "it does not exist"}
	}
	if ready {
		detail = ""
	}
	return plan.State{Existence: plan.Present, Matches: matches, Ready: ready, Detail: detail}
}

// content returns the path and the text of an item that is written to the disk.
func content(it plan.Item) (path, text string) {
	if f, ok := it.(plan.File); ok {
		return f.Path, f.Content
	}
	data, _ := json.Marshal(it) // plain data
	return it.Key(), string(data)
}

// Do implements reconcile.Host.
func (h host) Do(ctx context.Context, s plan.Step, e plan.Entry) error {
	h.pass(string(s.Verb) + " " + e.Ref.String())
	if err := h.alive(); err != nil {
		return err
	}
	h.m.mu.Lock()
	broken := h.m.broken[e.Ref.String()] && s.Verb != plan.Remove
	h.m.mu.Unlock()
	if broken {
		return errors.New("the story has broken this item")
	}
	defer h.pass(string(s.Verb) + " " + e.Ref.String() + " done")
	switch it := e.Item.(type) {
	case plan.Cert:
		if s.Verb == plan.Remove {
			return h.remove(it.Want.CertPath, it.Want.KeyPath)
		}
		return h.custody.ensure(ctx, it.Want)
	case plan.File, plan.Kubeconfig:
		path, text := content(it)
		if s.Verb == plan.Remove {
			return h.remove(path)
		}
		if err := os.MkdirAll(filepath.Dir(h.root+path), 0o755); err != nil {
			return err
		}
		return durable.WriteFile(h.root+path, 0o600, []byte(text))
	case plan.Dir:
		if s.Verb == plan.Remove {
			_ = os.Remove(h.root + it.Path) // if it is empty
			return nil
		}
		return os.MkdirAll(h.root+it.Path, 0o755)
	case plan.Unit:
		if it.Name == "etcd" || it.Name == "kube-apiserver" {
			return h.doUnit(ctx, s.Verb, it)
		}
		if it.Name == "kubelet" {
			h.m.mu.Lock()
			h.m.kubelet = s.Verb != plan.Remove
			h.m.mu.Unlock()
		}
	}
	return h.m.processes.Do(ctx, s, e)
}

// Await implements reconcile.Host.
func (h host) Await(ctx context.Context, e plan.Entry, waiting func(reason string)) error {
	own := false
	switch it := e.Item.(type) {
	case plan.Cert, plan.File, plan.Kubeconfig, plan.Precondition, plan.Dir:
		own = true
	case plan.Unit:
		own = it.Name == "etcd" || it.Name == "kube-apiserver"
	}
	if !own {
		return h.m.processes.Await(ctx, e, waiting)
	}
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		changed := h.m.changes()
		s, err := h.Observe(ctx, e)
		switch {
		case err != nil:
			return err
		case s.Ready:
			return nil
		case s.Existence == plan.Absent:
			return fmt.Errorf("%s has been removed", e.Ref)
		}
		waiting(s.Detail)
		timer := time.NewTimer(pause)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

func (h host) remove(paths ...string) error {
	for _, path := range paths {
		if path == "" {
			continue
		}
		if err := os.Remove(h.root + path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Reset implements node.Host. It removes items in the order of backend/reset.
func (h host) Reset(ctx context.Context, p plan.Plan, files []string) error {
	if err := h.alive(); err != nil {
		return err
	}
	if err := h.StopAll(ctx, nil); err != nil {
		return err
	}
	for _, f := range files {
		h.pass("reset " + f)
		if err := h.remove(f); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(h.root + filepath.Dir(etcdData)); err != nil {
		return err
	}
	for i := len(p.Entries) - 1; i >= 0; i-- {
		e := p.Entries[i]
		if _, ok := e.Item.(plan.Unit); ok {
			continue
		}
		if err := h.Do(ctx, plan.Step{Verb: plan.Remove, Ref: e.Ref, Why: "reset"}, e); err != nil {
			return err
		}
	}
	return nil
}

// StopAll implements node.Host.
func (h host) StopAll(context.Context, []string) error {
	if err := h.alive(); err != nil {
		return err
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	h.m.endProcessesLocked()
	h.m.processes = newProcesses()
	return nil
}

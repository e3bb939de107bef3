// SPDX-License-Identifier: Apache-2.0

// Package reset takes from a machine what a plan has made: its pods, mounts, files, data and network. It removes nothing that
// the plan does not name or its units have not made, and it may be killed and run again at any point. It decides nothing: who
// calls it has the right to.
//
// Read [Machine].
package reset

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
)

// Host is the machine whose units the plan runs.
type Host interface {
	StopAll(ctx context.Context, order []string) error
	Do(ctx context.Context, s plan.Step, e plan.Entry) error
}

// Machine stops everything of the plan and removes it, dependents first. extra are files that came with it. It goes on over
// errors and returns them all.
func Machine(ctx context.Context, h Host, p plan.Plan, extra []string) error {
	if err := h.StopAll(ctx, unitsBackwards(p)); err != nil {
		return fmt.Errorf("stop the units: %w", err)
	}
	if err := killPods(ctx, shimOf(p)); err != nil {
		return fmt.Errorf("stop the pods: %w", err)
	}
	var errs []error
	errs = append(errs, unmountBelow(dataFolders(p)), removeNetwork(ctx))
	for _, path := range []string{"/run/containerd", "/var/log/pods", "/var/log/containers"} { // containerd's and the kubelet's own
		errs = append(errs, empty(path))
	}
	errs = append(errs, files(ctx, h, p, extra), removeCgroups(unitsBackwards(p)))
	unix.Sync()
	return errors.Join(errs...)
}

// files removes what the plan has made on the disk, and what came with it.
func files(ctx context.Context, h Host, p plan.Plan, extra []string) error {
	var errs []error
	for _, path := range extra { // before the folders that they are in
		errs = append(errs, gone(path), durable.RemoveTempFiles(path))
	}
	for i := len(p.Entries) - 1; i >= 0; i-- {
		if err := remove(ctx, h, p.Entries[i]); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", p.Entries[i].Ref, err))
		}
	}
	return errors.Join(errs...)
}

func unitsBackwards(p plan.Plan) (names []string) {
	for i := len(p.Entries) - 1; i >= 0; i-- {
		if u, ok := p.Entries[i].Item.(plan.Unit); ok {
			names = append(names, u.Name)
		}
	}
	return names
}

func dataFolders(p plan.Plan) (paths []string) {
	for _, e := range p.Entries {
		if d, ok := e.Item.(plan.Dir); ok && d.Data {
			paths = append(paths, d.Path)
		}
	}
	return append(paths, "/run/containerd")
}

// remove takes with an entry what a crash has left half written of it: it may be half of a key.
func remove(ctx context.Context, h Host, e plan.Entry) error {
	if err := debris(e.Item); err != nil {
		return err
	}
	switch it := e.Item.(type) {
	case plan.Dir:
		if it.Data {
			return empty(it.Path)
		}
	case plan.Cert:
		if it.Want.Kind == pki.CA { // which a changed plan never removes
			return errors.Join(gone(it.Want.CertPath), gone(it.Want.KeyPath))
		}
	default:
	}
	return h.Do(ctx, plan.Step{Verb: plan.Remove, Ref: e.Ref, Why: "the node is reset"}, e)
}

// staged is the end of a certificate's name while its key is not in force yet (package ca).
const staged = ".new"

func debris(item plan.Item) error {
	switch it := item.(type) {
	case plan.Cert:
		if it.Want.CertPath == "" {
			return durable.RemoveTempFiles(it.Want.KeyPath)
		}
		next := it.Want.CertPath + staged
		return errors.Join(gone(next), durable.RemoveTempFiles(it.Want.CertPath, next, it.Want.KeyPath))
	case plan.Kubeconfig:
		return durable.RemoveTempFiles(it.Path)
	case plan.File:
		return durable.RemoveTempFiles(it.Path)
	case plan.StaticPod:
		return durable.RemoveTempFiles(it.Path)
	default:
		return nil
	}
}

func gone(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// empty removes what is in a folder; the folder itself may be a mount point.
func empty(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(path, e.Name())))
	}
	return errors.Join(errs...)
}

// SPDX-License-Identifier: Apache-2.0

// Package reset removes from a machine what a plan has made: pods, mounts, files, data and network. It
// removes nothing that the plan does not name or its units have not made, and it may be killed and run
// again at any point. Whether a reset is allowed is decided by the caller.
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

// Host is the machine that runs the plan's units.
type Host interface {
	StopAll(ctx context.Context, order []string) error
	Do(ctx context.Context, s plan.Step, e plan.Entry) error
}

// Machine stops and removes everything that the plan has made, dependents first, and the files extra,
// which came with the plan. If units or pods cannot be stopped, it removes nothing. It continues after
// other errors and returns them all.
func Machine(ctx context.Context, h Host, p plan.Plan, extra []string) error {
	if err := h.StopAll(ctx, unitsInReverse(p)); err != nil {
		return fmt.Errorf("stop the units: %w", err)
	}
	if err := killPods(ctx, shimOf(p)); err != nil {
		return fmt.Errorf("stop the pods: %w", err)
	}
	var errs []error
	errs = append(errs, unmountBelow(dataDirs(p)), removeNetwork(ctx))
	for _, path := range []string{"/run/containerd", "/var/log/pods", "/var/log/containers"} { // created by containerd and the kubelet
		errs = append(errs, emptyDir(path))
	}
	errs = append(errs, removeFiles(ctx, h, p, extra), removeCgroups(unitsInReverse(p)))
	unix.Sync()
	return errors.Join(errs...)
}

// removeFiles removes what the plan has made on disk, and the files that came with it.
func removeFiles(ctx context.Context, h Host, p plan.Plan, extra []string) error {
	var errs []error
	for _, path := range extra { // before their directories
		errs = append(errs, removeFile(path), durable.RemoveTempFiles(path))
	}
	for i := len(p.Entries) - 1; i >= 0; i-- {
		if err := remove(ctx, h, p.Entries[i]); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", p.Entries[i].Ref, err))
		}
	}
	return errors.Join(errs...)
}

// unitsInReverse returns the names of the plan's units, dependents first.
func unitsInReverse(p plan.Plan) (names []string) {
	for i := len(p.Entries) - 1; i >= 0; i-- {
		if u, ok := p.Entries[i].Item.(plan.Unit); ok {
			names = append(names, u.Name)
		}
	}
	return names
}

// dataDirs returns the directories in which units keep data and may have mounted file systems.
func dataDirs(p plan.Plan) (paths []string) {
	for _, e := range p.Entries {
		if d, ok := e.Item.(plan.Dir); ok && d.Data {
			paths = append(paths, d.Path)
		}
	}
	return append(paths, "/run/containerd")
}

// remove removes an entry and the temporary files that a crash has left behind, which may contain part of
// a key.
func remove(ctx context.Context, h Host, e plan.Entry) error {
	if err := removeTemporary(e.Item); err != nil {
		return err
	}
	switch it := e.Item.(type) {
	case plan.Dir:
		if it.Data {
			return emptyDir(it.Path)
		}
	case plan.Cert:
		if it.Want.Kind == pki.CA { // which Host.Do never removes
			return errors.Join(removeFile(it.Want.CertPath), removeFile(it.Want.KeyPath))
		}
	default:
	}
	return h.Do(ctx, plan.Step{Verb: plan.Remove, Ref: e.Ref, Why: "the node is reset"}, e)
}

// stagedSuffix marks a certificate whose key is not in use yet. Package ca writes it.
const stagedSuffix = ".new"

// removeTemporary removes the temporary files that a crash may have left behind while the item was
// written.
func removeTemporary(item plan.Item) error {
	switch it := item.(type) {
	case plan.Cert:
		if it.Want.CertPath == "" {
			return durable.RemoveTempFiles(it.Want.KeyPath)
		}
		next := it.Want.CertPath + stagedSuffix
		return errors.Join(removeFile(next), durable.RemoveTempFiles(it.Want.CertPath, next, it.Want.KeyPath))
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

// removeFile removes a file. It returns nil if there is none.
func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// emptyDir removes the contents of a directory. The directory itself may be a mount point and is kept.
func emptyDir(path string) error {
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

// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/slipway-project/slipway/internal/backend/dataguard"
	"github.com/slipway-project/slipway/internal/backend/pods"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
)

// manifest is the text of a static pod here and now: it follows from the plan's manifest and from what its inputs hold.
func (h *Host) manifest(p plan.StaticPod) (pods.Manifest, error) {
	var inputs []string
	for _, ref := range p.Inputs {
		item, ok := h.input(ref)
		if !ok {
			return pods.Manifest{}, fmt.Errorf("static pod %s: input %s has not been looked at yet", p.Name, ref)
		}
		print, err := h.Fingerprint(item)
		if err != nil {
			return pods.Manifest{}, fmt.Errorf("static pod %s: input %s: %w", p.Name, ref, err)
		}
		inputs = append(inputs, ref.String()+" "+print)
	}
	return pods.NewManifest(p, inputs), nil
}

func (h *Host) observeStaticPod(ctx context.Context, p plan.StaticPod) (plan.State, error) {
	want, err := h.manifest(p)
	if err != nil {
		return plan.State{}, err
	}
	state, err := observeManifest(p, want.Text)
	if err != nil || !p.Component {
		return state, err
	}
	if h.conf.Pods == nil {
		return plan.State{}, fmt.Errorf("static pod %s: this agent does not run components as pods", p.Name)
	}
	if !state.Matches {
		state.Down = state.Existence == plan.Present && h.conf.Pods.Down(ctx, p, onDisk(p))
		return state, nil
	}
	h.conf.Pods.Know(p, want.UID)
	ready, reason, err := h.conf.Pods.State(ctx, p.Name)
	if err != nil {
		return plan.State{}, err
	}
	return plan.State{Existence: plan.Present, Matches: true, Ready: ready, Detail: reason}, nil
}

// observeManifest looks at the file, and at the link to it where the file lies elsewhere.
func observeManifest(p plan.StaticPod, text string) (plan.State, error) {
	at := p.Path
	if p.At != "" {
		at = p.At
		switch target, err := os.Readlink(p.Path); {
		case errors.Is(err, fs.ErrNotExist):
			return absent(), nil
		case err != nil && !errors.Is(err, syscall.EINVAL):
			return plan.State{}, err
		case target != p.At:
			return wrong("it is no link to " + p.At), nil
		}
	}
	return observeContent(content{path: at, mode: manifestMode, render: func() ([]byte, error) { return []byte(text), nil }})
}

const manifestMode = 0o600

func (h *Host) makeStaticPod(p plan.StaticPod) error {
	if err := dataguard.Refuse(p.DataGuard); err != nil { // it must not even be tried: the kubelet would try for ever
		return err
	}
	if err := foreign(p); err != nil {
		return err
	}
	want, err := h.manifest(p)
	if err != nil {
		return err
	}
	if p.Component && h.conf.Pods != nil {
		h.conf.Pods.Know(p, want.UID)
	}
	render := func() ([]byte, error) { return []byte(want.Text), nil }
	if p.At == "" {
		return makeContent(content{path: p.Path, mode: manifestMode, scratch: scratch(p), render: render})
	}
	if err := makeContent(content{path: p.At, mode: manifestMode, render: render}); err != nil {
		return err
	}
	return link(p)
}

// scratch is outside the manifests folder: the kubelet must never see half of a file, under any name.
func scratch(p plan.StaticPod) string { return filepath.Dir(filepath.Dir(p.Path)) }

// link puts the link anew in place also where it is right: the kubelet watches this folder, and not the one that the link leads to.
func link(p plan.StaticPod) error {
	if err := makeParent(p.Path); err != nil {
		return err
	}
	temp := filepath.Join(scratch(p), "."+filepath.Base(p.Path)+".slipway")
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(p.At, temp); err != nil {
		return err
	}
	if err := os.Rename(temp, p.Path); err != nil {
		return errors.Join(fmt.Errorf("link %s: %w", p.Path, err), os.Remove(temp))
	}
	return durable.SyncDir(filepath.Dir(p.Path))
}

// onDisk is the UID in the manifest that the kubelet has.
func onDisk(p plan.StaticPod) string {
	data, err := os.ReadFile(p.Path)
	if err != nil {
		return ""
	}
	return pods.UIDOf(string(data))
}

// foreign refuses to write over a manifest that somebody else has put there.
func foreign(p plan.StaticPod) error {
	data, err := os.ReadFile(p.Path) // through a link: what the kubelet reads counts
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if ours, _ := pods.Ours(string(data)); !ours {
		return fmt.Errorf("write %s: there is one that slipway has not written: move it away, or give the static pod another name", p.Path)
	}
	return nil
}

// removeStaticPod takes the manifest away if it is Slipway's, and waits until a component's pod has ended. What somebody has changed
// or put there is left: it is theirs.
func (h *Host) removeStaticPod(ctx context.Context, p plan.StaticPod) error {
	if info, err := os.Lstat(p.Path); err == nil && p.At == "" && !info.Mode().IsRegular() {
		return fmt.Errorf("remove %s: it is %s and was made as a file; remove it by hand", p.Path, typeName(info.Mode()))
	}
	data, err := os.ReadFile(p.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if ours, same := pods.Ours(string(data)); err == nil && (!ours || !same && !p.Component) {
		return nil
	}
	for _, path := range []string{p.Path, p.At} {
		if path == "" {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if !p.Component || h.conf.Pods == nil {
		return nil
	}
	if err := h.conf.Pods.AwaitEnd(ctx, p.Name, pods.UIDOf(string(data))); err != nil {
		return err
	}
	h.conf.Pods.Forget(p.Name)
	return nil
}

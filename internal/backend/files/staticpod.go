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

// manifest returns the static pod's manifest for the current content of its inputs.
func (h *Host) manifest(p plan.StaticPod) (pods.Manifest, error) {
	var inputs []string
	for _, ref := range p.Inputs {
		item, ok := h.input(ref)
		if !ok {
			return pods.Manifest{}, fmt.Errorf("static pod %s: input %s has not been observed yet", p.Name, ref)
		}
		print, err := h.Fingerprint(item)
		if err != nil {
			return pods.Manifest{}, fmt.Errorf("static pod %s: input %s: %w", p.Name, ref, err)
		}
		inputs = append(inputs, ref.String()+" "+print)
	}
	return pods.NewManifest(p, inputs), nil
}

// observeStaticPod observes the manifest and, for a component, whether its pod is ready.
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
		return plan.State{}, fmt.Errorf("static pod %s: this agent does not run components as static pods", p.Name)
	}
	if !state.Matches {
		state.Down = state.Existence == plan.Present && h.conf.Pods.Down(ctx, p, installedUID(p))
		return state, nil
	}
	h.conf.Pods.Track(p, want.UID)
	ready, reason, err := h.conf.Pods.State(ctx, p.Name)
	if err != nil {
		return plan.State{}, err
	}
	return plan.State{Existence: plan.Present, Matches: true, Ready: ready, Detail: reason}, nil
}

// observeManifest observes the manifest, and the link to it if it is stored elsewhere.
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
			return wrong("it is not a link to " + p.At), nil
		}
	}
	return observeContent(content{path: at, mode: manifestMode, render: func() ([]byte, error) { return []byte(text), nil }})
}

const manifestMode = 0o600

// makeStaticPod writes the manifest, unless the pod's data was lost or the path is taken by a file that
// Slipway has not written.
func (h *Host) makeStaticPod(p plan.StaticPod) error {
	if err := dataguard.Check(p.DataGuard); err != nil { // checked here because the kubelet would retry forever
		return err
	}
	if err := checkForeign(p); err != nil {
		return err
	}
	want, err := h.manifest(p)
	if err != nil {
		return err
	}
	if p.Component && h.conf.Pods != nil {
		h.conf.Pods.Track(p, want.UID)
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

// scratch is a directory next to the manifest directory: the kubelet must never see a partial file, under
// any name.
func scratch(p plan.StaticPod) string { return filepath.Dir(filepath.Dir(p.Path)) }

// link creates the link to the manifest. It replaces an existing link even if it is correct, because the
// kubelet watches only the manifest directory and would not notice a change of the target.
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

// installedUID returns the pod UID in the installed manifest, or "".
func installedUID(p plan.StaticPod) string {
	data, err := os.ReadFile(p.Path)
	if err != nil {
		return ""
	}
	return pods.UIDOf(string(data))
}

// checkForeign returns an error if there is a manifest that Slipway has not written.
func checkForeign(p plan.StaticPod) error {
	data, err := os.ReadFile(p.Path) // follows the link, like the kubelet
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if written, _ := pods.WrittenBySlipway(string(data)); !written {
		return fmt.Errorf("write %s: a file exists that slipway has not written (move it, or rename the static pod)", p.Path)
	}
	return nil
}

// removeStaticPod removes the manifest if Slipway has written it, and waits until a component's pod has
// terminated. A user's pod that was changed on the node, or a file that Slipway has not written, is kept.
func (h *Host) removeStaticPod(ctx context.Context, p plan.StaticPod) error {
	if info, err := os.Lstat(p.Path); err == nil && p.At == "" && !info.Mode().IsRegular() {
		return fmt.Errorf("remove %s: it is %s and was made as a file; remove it manually", p.Path, typeName(info.Mode()))
	}
	data, err := os.ReadFile(p.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if written, unchanged := pods.WrittenBySlipway(string(data)); err == nil && (!written || !unchanged && !p.Component) {
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

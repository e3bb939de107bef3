// SPDX-License-Identifier: Apache-2.0

// Package files makes and observes the items of a plan that are not units: directories, files, artifacts,
// mounts, keys, kubeconfigs and static pods, and it checks preconditions. It never starts a process, never
// follows a symlink in place of a file, never removes a directory that is not empty, and never prints the
// content of a secret file.
//
// Read [Host] and [Config] first. A supervisor passes it every item that is not a unit:
//
//	h, err := files.New(files.Config{Store: "/var/lib/slipway/store", Verified: "/run/slipway/verified", Keys: ca, Probe: p})
//	state, err := h.Observe(ctx, entry) // {Present, Matches: false, Detail: "mode 0644, want 0600"}
package files

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/slipway-project/slipway/internal/backend/pods"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// Keys makes and checks key material. Methods are called concurrently, but never for the same Want.
type Keys interface {
	// Check reports whether the key material exists and whether it matches the Want. An error means that
	// this is unknown.
	Check(ctx context.Context, w pki.Want) (ok, exists bool, detail string, err error)
	// Ensure makes the key material. It is idempotent.
	Ensure(ctx context.Context, w pki.Want) error
}

// Prober runs readiness probes; *probe.Prober implements it.
type Prober interface {
	Ask(ctx context.Context, pr plan.Probe) error
	Await(ctx context.Context, pr plan.Probe, waiting func(reason string)) error
}

// Config configures a Host.
type Config struct {
	Store    string // directory of the component store; blobs are <Store>/blobs/sha256/<hex>
	Verified string // record of the blobs verified since boot; must be on a file system that is emptied at boot, such as /run
	Keys     Keys   // may be nil if no plan has certificates
	Probe    Prober
	// Fetch, if set, downloads a blob that is missing or damaged. It returns once the blob is complete and
	// durable.
	Fetch func(ctx context.Context, digest string) error
	Pods  *pods.Manager // may be nil if no component runs as a static pod
}

// Host manages the files of a machine. It implements reconcile.Host for every kind except units.
type Host struct {
	conf  Config
	blobs *blobs

	mu   sync.Mutex             // guards seen
	seen map[plan.Ref]plan.Item // resolves the inputs of static pods
}

// New loads the record of verified blobs. If the record is damaged, blobs are verified again.
func New(c Config) (*Host, error) {
	if c.Store == "" || c.Verified == "" || c.Probe == nil {
		return nil, errors.New("files: Store, Verified and Probe are required")
	}
	b, err := openBlobs(c.Store, c.Verified)
	if err != nil {
		return nil, err
	}
	b.fetch = c.Fetch
	return &Host{conf: c, blobs: b, seen: map[plan.Ref]plan.Item{}}, nil
}

// Observe implements reconcile.Host.
func (h *Host) Observe(ctx context.Context, e plan.Entry) (plan.State, error) {
	h.remember(e)
	switch it := e.Item.(type) {
	case plan.Dir:
		return observeDir(it)
	case plan.File:
		return observeContent(file(it))
	case plan.Kubeconfig:
		return observeContent(kubeconfig(it))
	case plan.StaticPod:
		return h.observeStaticPod(ctx, it)
	case plan.Artifact:
		return h.observeArtifact(it)
	case plan.Mount:
		return observeMount(it)
	case plan.Cert:
		return h.observeCert(ctx, it)
	case plan.Precondition:
		return h.observePrecondition(ctx, it)
	}
	return plan.State{}, fmt.Errorf("observe %s: not handled by package files", e.Ref)
}

// Do implements reconcile.Host.
func (h *Host) Do(ctx context.Context, s plan.Step, e plan.Entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h.remember(e)
	if p, ok := e.Item.(plan.StaticPod); ok && s.Verb == plan.Remove {
		return h.removeStaticPod(ctx, p)
	}
	if s.Verb == plan.Remove {
		return remove(e.Item)
	}
	switch it := e.Item.(type) {
	case plan.Dir:
		return makeDir(it)
	case plan.File:
		return makeContent(file(it))
	case plan.Kubeconfig:
		return makeContent(kubeconfig(it))
	case plan.StaticPod:
		return h.makeStaticPod(it)
	case plan.Artifact:
		return h.makeArtifact(ctx, it)
	case plan.Mount:
		return makeMount(it)
	case plan.Cert:
		return h.makeCert(ctx, it)
	case plan.Precondition:
		return fmt.Errorf("%s: a precondition is fulfilled by %s, not by this host", e.Ref, it.Provider)
	}
	return fmt.Errorf("%s %s: not handled by package files", s.Verb, e.Ref)
}

// Await implements reconcile.Host. It waits without limit for preconditions and components' pods. Any
// other item is ready as soon as its step is done, so that waiting for an unready one is an error.
func (h *Host) Await(ctx context.Context, e plan.Entry, waiting func(reason string)) error {
	if pre, ok := e.Item.(plan.Precondition); ok {
		return h.conf.Probe.Await(ctx, pre.Ready, waiting)
	}
	if p, ok := e.Item.(plan.StaticPod); ok && p.Component && h.conf.Pods != nil {
		return h.conf.Pods.Await(ctx, p.Name, waiting)
	}
	s, err := h.Observe(ctx, e)
	if err != nil {
		return err
	}
	if !s.Ready {
		return fmt.Errorf("%s is not ready: %s", e.Ref, s.Detail)
	}
	return nil
}

// remember stores an item, so that static pods can name it as an input.
func (h *Host) remember(e plan.Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[e.Ref] = e.Item
}

func (h *Host) input(ref plan.Ref) (plan.Item, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	item, ok := h.seen[ref]
	return item, ok
}

// observePrecondition runs the probe. A precondition always exists.
func (h *Host) observePrecondition(ctx context.Context, g plan.Precondition) (plan.State, error) {
	s := plan.State{Existence: plan.Present, Matches: true}
	if err := h.conf.Probe.Ask(ctx, g.Ready); err != nil {
		if ctx.Err() != nil {
			return plan.State{}, ctx.Err()
		}
		s.Detail = err.Error()
		return s, nil
	}
	s.Ready = true
	return s, nil
}

func absent() plan.State { return plan.State{Existence: plan.Absent, Detail: "it does not exist"} }
func right() plan.State {
	return plan.State{Existence: plan.Present, Matches: true, Ready: true}
}
func wrong(detail string) plan.State { return plan.State{Existence: plan.Present, Detail: detail} }

// Fingerprint identifies the current content of an item, without its path and mode. It changes exactly
// when a process that reads the item at its start would read something else. A missing item has a
// fingerprint too.
func (h *Host) Fingerprint(item plan.Item) (string, error) { return Fingerprint(item) }

// Fingerprint is [Host.Fingerprint] without a Host.
func Fingerprint(item plan.Item) (string, error) {
	switch it := item.(type) {
	case plan.File:
		return sumFiles(it.Path)
	case plan.Kubeconfig:
		return sumFiles(it.Path)
	case plan.StaticPod:
		return sumFiles(it.Path)
	case plan.Cert:
		return sumFiles(it.Want.CertPath, it.Want.KeyPath)
	case plan.Artifact:
		target, err := os.Readlink(it.Path)
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		return filepath.Base(target), err
	case plan.Dir, plan.Mount, plan.Precondition: // not read by a process at its start
		return "", nil
	}
	return "", fmt.Errorf("fingerprint of %s: not handled by package files", plan.RefOf(item))
}

// sumFiles hashes the names, sizes and contents of files. Missing files are part of the hash.
func sumFiles(paths ...string) (string, error) {
	sum := sha256.New()
	for _, path := range paths {
		if path == "" {
			continue
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(sum, "%s is absent\n", path)
			continue
		}
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n", path, len(data))
		sum.Write(data)
	}
	return hex.EncodeToString(sum.Sum(nil))[:32], nil
}

var errNoKeys = errors.New("this host does not manage keys")

// observeCert asks Keys for the state of key material.
func (h *Host) observeCert(ctx context.Context, c plan.Cert) (plan.State, error) {
	if h.conf.Keys == nil {
		return plan.State{}, errNoKeys
	}
	ok, exists, detail, err := h.conf.Keys.Check(ctx, c.Want)
	switch {
	case err != nil:
		return plan.State{}, fmt.Errorf("check %s: %w", c.Want.Name, err)
	case !exists:
		return absent(), nil
	case !ok:
		return wrong(detail), nil
	}
	s := right()
	s.Detail = detail
	return s, nil
}

func (h *Host) makeCert(ctx context.Context, c plan.Cert) error {
	if h.conf.Keys == nil {
		return errNoKeys
	}
	if err := h.conf.Keys.Ensure(ctx, c.Want); err != nil {
		return fmt.Errorf("make %s: %w", c.Want.Name, err)
	}
	return nil
}

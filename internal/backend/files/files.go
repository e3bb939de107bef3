// SPDX-License-Identifier: Apache-2.0

// Package files makes and observes everything of a plan that is not a process: folders, files, artifacts, mounts, keys,
// kubeconfigs and static pods; and it asks gates. It never starts anything, never follows a symlink that stands where a file
// belongs, never removes a folder that holds something, and never prints what a secret file holds.
//
// Read [Host] and [Config] first. A supervisor hands it what is not a unit:
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

// Keys has custody of key material. Methods are called from many goroutines, for one Want never two at a time.
type Keys interface {
	// Check tells whether what the Want describes exists and fits. An error means that nobody knows.
	Check(ctx context.Context, w pki.Want) (ok, exists bool, detail string, err error)
	// Ensure makes it so. It is idempotent.
	Ensure(ctx context.Context, w pki.Want) error
}

// Asker asks probes; *probe.Prober is one.
type Asker interface {
	Ask(ctx context.Context, pr plan.Probe) error
	Await(ctx context.Context, pr plan.Probe, waiting func(reason string)) error
}

// Config is what a Host works with.
type Config struct {
	Store    string // folder of the component store; blobs are <Store>/blobs/sha256/<hex>
	Verified string // record of blobs verified since boot, on a file system that a boot empties, such as /run
	Keys     Keys   // may be nil when no plan has certificates
	Probe    Asker
	// Fetch brings a blob that the store lacks or has damaged, optional. It returns when the blob is there, whole and durable.
	Fetch func(ctx context.Context, digest string) error
	Pods  *pods.Keeper // may be nil where no component runs as a static pod
}

// Host is the machine's files. It has the methods of a reconcile.Host for every kind but units.
type Host struct {
	conf  Config
	blobs *blobs

	mu   sync.Mutex             // guards seen
	seen map[plan.Ref]plan.Item // what static pods may have as inputs
}

// New reads which blobs have been verified since boot. A damaged record only means that they are verified again.
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

// Observe tells the entry's state, see reconcile.Host.
func (h *Host) Observe(ctx context.Context, e plan.Entry) (plan.State, error) {
	h.see(e)
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
		return h.observeGate(ctx, it)
	}
	return plan.State{}, fmt.Errorf("observe %s: not a kind of file", e.Ref)
}

// Do carries out one step, see reconcile.Host.
func (h *Host) Do(ctx context.Context, s plan.Step, e plan.Entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h.see(e)
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
		return fmt.Errorf("%s: a gate is opened by %s, not by this host", e.Ref, it.Provider)
	}
	return fmt.Errorf("%s %s: not a kind of file", s.Verb, e.Ref)
}

// Await waits for a gate without limit. Anything else is ready as soon as it is right, or waiting for it is pointless.
func (h *Host) Await(ctx context.Context, e plan.Entry, waiting func(reason string)) error {
	if gate, ok := e.Item.(plan.Precondition); ok {
		return h.conf.Probe.Await(ctx, gate.Ready, waiting)
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

func (h *Host) see(e plan.Entry) {
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

// observeGate: a gate always exists, for it is only a question.
func (h *Host) observeGate(ctx context.Context, g plan.Precondition) (plan.State, error) {
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

// Fingerprint identifies what the machine holds of an item now: its content, not its path or mode. It changes exactly when a
// process that read the item at its start would read something else. What does not exist has a fingerprint too.
func (h *Host) Fingerprint(item plan.Item) (string, error) { return Fingerprint(item) }

// Fingerprint is the Host's, for who has none.
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
	case plan.Dir, plan.Mount, plan.Precondition: // a process does not read these at its start
		return "", nil
	}
	return "", fmt.Errorf("fingerprint of %s: not a kind of file", plan.RefOf(item))
}

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

var errNoKeys = errors.New("this host has no custody of keys")

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

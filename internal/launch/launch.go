// SPDX-License-Identifier: Apache-2.0

// Package launch takes a spec to a running cluster on machines of this host, and back. It calls the pure core to decide,
// the edges to act, and tells what it does as a stream of events; it prints nothing.
//
// Read [Launcher.Up] first: it is the road from the five-line spec to the pod that answers.
package launch

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/sshhost"
)

// Launcher works on the clusters of one root folder.
type Launcher struct {
	Root    string // /var/lib/slipway
	Exe     string // this program, to run in machines and as the API proxy
	Version string
	Log     *slog.Logger
	SSH     sshhost.Config // how machines that exist are reached; Home and AgentSocket
}

// Event tells how the work goes. Events of one Item come in order.
type Event struct {
	Stage   Stage         `json:"stage"`
	Machine string        `json:"machine,omitempty"`
	Item    string        `json:"item,omitempty"`
	Phase   string        `json:"phase,omitempty"`
	Text    string        `json:"text,omitempty"`
	Elapsed time.Duration `json:"elapsed"` // since the command began
	Done    int           `json:"done,omitempty"`
	Total   int           `json:"total,omitempty"`
}

// Stage is where on the road an event stands.
type Stage string

// The stages, in order.
const (
	StageSpec      Stage = "spec"
	StagePreflight Stage = "preflight"
	StageBundle    Stage = "bundle"
	StageMachine   Stage = "machine"
	StagePlan      Stage = "plan"
	StageConverge  Stage = "converge"
	StageDone      Stage = "done"
)

// Cluster is a cluster of this host as the launcher knows it.
type Cluster struct {
	Name    string
	Config  config.Cluster
	Release catalog.Release
	Spec    []byte // what the user wrote
}

// Error carries what a caller turns into an exit code.
type Error struct {
	Kind ErrorKind
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// ErrorKind says which part of the road failed.
type ErrorKind int

// The kinds; anything else is a plain failure.
const (
	InvalidSpec ErrorKind = iota + 1
	Preflight
	TimedOut
)

// Store opens the component store.
func (l *Launcher) Store() (*artifact.Store, error) {
	return artifact.Open(filepath.Join(l.Root, "store"))
}

// Machines gives access to this host's machines. The runc that runs them comes from the bundle.
func (l *Launcher) Machines(runc string) (*machine.Local, error) {
	return machine.New(machine.Config{Root: l.Root, Runc: runc, Log: l.Log})
}

// Bundle returns the release's bundle, building what is missing.
func (l *Launcher) Bundle(ctx context.Context, r catalog.Release, report func(artifact.Event)) (artifact.Bundle, *artifact.Store, error) {
	store, err := l.Store()
	if err != nil {
		return artifact.Bundle{}, nil, err
	}
	bundle, err := artifact.Build(ctx, artifact.Options{Store: store, Release: r, Progress: report})
	if err != nil {
		return artifact.Bundle{}, nil, fmt.Errorf("build bundle %s: %w", r.Kubernetes, err)
	}
	return bundle, store, nil
}

func (l *Launcher) clusterDir(name string) string { return filepath.Join(l.Root, "clusters", name) }

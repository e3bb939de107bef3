// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/pki"
)

// Kind names one of the nine kinds of item. The set is closed: every backend and renderer handles all of
// them.
type Kind string

// The kinds. Adding a tenth requires an ADR.
const (
	KindDir          Kind = "dir"
	KindFile         Kind = "file"
	KindArtifact     Kind = "artifact"
	KindMount        Kind = "mount"
	KindCert         Kind = "cert"
	KindKubeconfig   Kind = "kubeconfig"
	KindUnit         Kind = "unit"
	KindStaticPod    Kind = "staticpod"
	KindPrecondition Kind = "precondition"
)

// Item is one thing that a node must have. Only the nine types of this file implement it.
type Item interface {
	Kind() Kind
	Key() string // unique within the kind: a path or a name
	isItem()
}

// Dir is a directory, owned by root unless Owner or Group is set.
type Dir struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode"` // permission bits
	// Data means that the contents belong to the node: they are deleted when the node is reset, but not
	// when a later plan no longer has the directory.
	Data bool `json:"data,omitempty"`
	// Owner and Group are account names on the machine. Empty means root.
	Owner string `json:"owner,omitempty"`
	Group string `json:"group,omitempty"`
}

// File is a regular file, owned by root and written atomically. Content is never secret; secrets are
// filled in through Fill.
type File struct {
	Path    string `json:"path"`
	Mode    uint32 `json:"mode"`
	Content string `json:"content"`
	// Fill maps a placeholder in Content to a file on the node (a Want of kind Secret) whose bytes, base64-encoded, replace it.
	Fill map[string]string `json:"fill,omitempty"`
	// UserOwned marks a file that the user supplies. It is removed only if it has not been changed on the
	// node.
	UserOwned bool `json:"userOwned,omitempty"`
}

// Artifact is a file from the component store, available at Path. Its digest is verified before use.
type Artifact struct {
	Path   string `json:"path"`
	Digest string `json:"digest"` // "sha256:" and 64 hex digits
	Name   string `json:"name"`   // for display: "kube v1.36.4"
}

// Mount is a mounted file system.
type Mount struct {
	Target  string   `json:"target"`
	Source  string   `json:"source"`
	Type    string   `json:"type"`
	Options []string `json:"options,omitempty"`
}

// Cert is key material that the node makes according to Want.
type Cert struct {
	Want pki.Want `json:"want"`
}

// Kubeconfig is a client configuration that refers to its credentials by path.
type Kubeconfig struct {
	Path     string `json:"path"`
	Cluster  string `json:"cluster"`
	User     string `json:"user"`
	Server   string `json:"server"` // https://host:port
	CAFile   string `json:"caFile"`
	CertFile string `json:"certFile"`
	KeyFile  string `json:"keyFile"`
	// Embed copies the credentials into the file, for users who copy it to another machine. Otherwise the
	// file refers to them by path.
	Embed bool `json:"embed,omitempty"`
}

// Unit is a supervised process. It has only settings that every supervisor supports, not the options of
// one init system.
type Unit struct {
	Name string   `json:"name"`
	Args []string `json:"args"` // Args[0] is an absolute path
	Env  []string `json:"env,omitempty"`
	Dir  string   `json:"dir,omitempty"`
	// EnvFile is a file of space-separated NAME=VALUE words that are added to Env at each start. It is not
	// an input: changing it restarts nothing.
	EnvFile string `json:"envFile,omitempty"`

	// Oneshot units run to completion. Ready then reports whether the work is done, and is checked first
	// so that finished work is not repeated. For other units, Ready reports whether the process can be
	// relied on.
	Oneshot bool  `json:"oneshot,omitempty"`
	Ready   Probe `json:"ready"`

	// Inputs are the items whose change restarts the unit. Files that the process reloads by itself are
	// not inputs.
	Inputs []Ref `json:"inputs,omitempty"`

	// DataGuard names data without which the unit must not start.
	DataGuard DataGuard `json:"dataGuard,omitzero"`

	StopTimeout time.Duration `json:"stopTimeout,omitempty"` // between SIGTERM and SIGKILL; 0 means 10 s
	// KillChildren stops every process in the unit's cgroup, not only the main one. False for container
	// runtimes, whose containers must survive a restart.
	KillChildren bool `json:"killChildren,omitempty"`
	OOMScore     int  `json:"oomScore,omitempty"`
}

// DataGuard protects a process from starting with empty data after its data was lost: if Mark exists and
// Data does not, the data is lost or not mounted, and the process is not started. Mark is made by an item
// of the plan that comes after the process.
type DataGuard struct {
	Mark string `json:"mark"` // a file
	Data string `json:"data"` // a file or directory
	// FreshStart is an optional file. While it exists and Mark does not, nothing depends on Data yet, and
	// each start deletes Data first: an interrupted first start may have left it incomplete.
	FreshStart string `json:"freshStart,omitempty"`
}

// StaticPod is a manifest in the kubelet's manifest directory and, for components, the process that the
// kubelet starts from it.
type StaticPod struct {
	Name     string `json:"name"` // name of the component or of the user's pod; unique in the plan
	Path     string `json:"path"` // in the kubelet's manifest directory
	Manifest string `json:"manifest"`
	// At, if set, is the location of the manifest, and Path is a symlink to it. It is used for manifests
	// on a volume without which the pod must not start.
	At string `json:"at,omitempty"`

	// Component means that the pod runs one of the node's components. The manifest contains the
	// placeholders PodUID and PodInputs, and the item is ready when the process of this exact manifest
	// runs and Ready succeeds. Otherwise it is the user's pod, and the item is ready when the manifest
	// exists.
	Component bool      `json:"component,omitempty"`
	Ready     Probe     `json:"ready,omitzero"`
	Inputs    []Ref     `json:"inputs,omitempty"`   // as in Unit
	DataGuard DataGuard `json:"dataGuard,omitzero"` // as in Unit; checked before the manifest is written and, by dataguard.Guard, before each start
	Image     string    `json:"image,omitempty"`    // for display
}

// Placeholders in a component's manifest, which the node replaces when it writes the manifest. Both values
// are derived from the manifest and its inputs, so each change makes a different pod.
const (
	PodUID    = "{{slipway-pod-uid}}"
	PodInputs = "{{slipway-pod-inputs}}"
)

// Precondition is a condition that someone other than this host fulfills. Waiting for it has no time
// limit.
type Precondition struct {
	Name     string `json:"name"`
	Provider string `json:"provider"` // who fulfills it, for status messages
	Ready    Probe  `json:"ready"`
}

func (i Dir) Kind() Kind          { return KindDir }
func (i File) Kind() Kind         { return KindFile }
func (i Artifact) Kind() Kind     { return KindArtifact }
func (i Mount) Kind() Kind        { return KindMount }
func (i Cert) Kind() Kind         { return KindCert }
func (i Kubeconfig) Kind() Kind   { return KindKubeconfig }
func (i Unit) Kind() Kind         { return KindUnit }
func (i StaticPod) Kind() Kind    { return KindStaticPod }
func (i Precondition) Kind() Kind { return KindPrecondition }

func (i Dir) Key() string          { return i.Path }
func (i File) Key() string         { return i.Path }
func (i Artifact) Key() string     { return i.Path }
func (i Mount) Key() string        { return i.Target }
func (i Cert) Key() string         { return i.Want.Name }
func (i Kubeconfig) Key() string   { return i.Path }
func (i Unit) Key() string         { return i.Name }
func (i StaticPod) Key() string    { return i.Name }
func (i Precondition) Key() string { return i.Name }

func (Dir) isItem()          {}
func (File) isItem()         {}
func (Artifact) isItem()     {}
func (Mount) isItem()        {}
func (Cert) isItem()         {}
func (Kubeconfig) isItem()   {}
func (Unit) isItem()         {}
func (StaticPod) isItem()    {}
func (Precondition) isItem() {}

// ProbeKind says how readiness is checked.
type ProbeKind string

// The kinds of probe. The zero value means ready as soon as the item exists or the process has started.
const (
	ProbeNone   ProbeKind = ""
	ProbeHTTP   ProbeKind = "http"   // GET URL answers 200
	ProbeTCP    ProbeKind = "tcp"    // Address accepts a connection
	ProbeExec   ProbeKind = "exec"   // Args exits 0 and its output contains Contains
	ProbeNotify ProbeKind = "notify" // the process sends READY=1 to $NOTIFY_SOCKET
	ProbeFile   ProbeKind = "file"   // Path exists and is not empty
	ProbeTask   ProbeKind = "task"   // the agent's own task named by Args is done; checked without starting a process
)

// Probe is a readiness check. It yields success or a reason for failure.
type Probe struct {
	Kind     ProbeKind `json:"kind,omitempty"`
	URL      string    `json:"url,omitempty"`      // http
	CA       string    `json:"ca,omitempty"`       // http: path of the CA that signed the server
	Cert     string    `json:"cert,omitempty"`     // http: client certificate path
	Key      string    `json:"key,omitempty"`      // http: client key path
	Contains string    `json:"contains,omitempty"` // text that the response or output must contain
	Address  string    `json:"address,omitempty"`  // tcp: host:port; unix sockets as unix:///path
	Args     []string  `json:"args,omitempty"`     // exec, task
	Path     string    `json:"path,omitempty"`     // file
}

// String describes what the probe waits for, to follow "waiting for".
func (p Probe) String() string {
	switch p.Kind {
	case ProbeHTTP:
		if p.Contains != "" {
			return p.URL + " to return " + p.Contains
		}
		return p.URL + " to answer 200"
	case ProbeTCP:
		return p.Address + " to accept a connection"
	case ProbeExec:
		return strings.Join(p.Args, " ") + " to succeed"
	case ProbeNotify:
		return "the process to send READY=1"
	case ProbeFile:
		return p.Path + " to appear"
	case ProbeTask:
		return strings.Join(p.Args, " ") + " to be done"
	case ProbeNone:
	}
	return "nothing"
}

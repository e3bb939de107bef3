// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"time"

	"github.com/slipway-project/slipway/internal/core/pki"
)

// Kind names one of the nine kinds of item. The set is closed: every backend and renderer handles all of them.
type Kind string

// The kinds. A tenth needs an ADR.
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

// Item is one thing that a node must have. Implemented only by the nine types of this file.
type Item interface {
	Kind() Kind
	Key() string // unique within the kind: a path or a name
	isItem()
}

// Dir is a folder, owned by root unless it says otherwise.
type Dir struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode"` // permission bits
	// Data: what the plan's units put into it is the node's and goes when the node is reset; a plan that no longer has the folder
	// leaves it.
	Data bool `json:"data,omitempty"`
	// Owner and Group are names of the machine's accounts; empty: root.
	Owner string `json:"owner,omitempty"`
	Group string `json:"group,omitempty"`
}

// File is a regular file, owned by root, written atomically. Content is never secret: a secret comes in through Fill.
type File struct {
	Path    string `json:"path"`
	Mode    uint32 `json:"mode"`
	Content string `json:"content"`
	// Fill maps a placeholder in Content to a file on the node (a Want of kind Secret) whose bytes, base64-encoded, replace it.
	Fill map[string]string `json:"fill,omitempty"`
	// UserOwned: the user's own file. It is taken away only as long as nobody has changed it.
	UserOwned bool `json:"userOwned,omitempty"`
}

// Artifact is a file of the component store that must be usable at Path. It is verified when it is taken.
type Artifact struct {
	Path   string `json:"path"`
	Digest string `json:"digest"` // "sha256:" and 64 hex digits
	Name   string `json:"name"`   // for people: "kube v1.36.4"
}

// Mount is a mounted file system.
type Mount struct {
	Target  string   `json:"target"`
	Source  string   `json:"source"`
	Type    string   `json:"type"`
	Options []string `json:"options,omitempty"`
}

// Cert is key material made on the node according to Want.
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
	// Embed copies the credentials into the file, for users who take it elsewhere; otherwise it refers to them by path.
	Embed bool `json:"embed,omitempty"`
}

// Unit is a supervised process. It is defined by what every supervisor can do, not by one init system's options.
type Unit struct {
	Name string   `json:"name"`
	Args []string `json:"args"` // Args[0] is an absolute path
	Env  []string `json:"env,omitempty"`
	Dir  string   `json:"dir,omitempty"`
	// EnvFile is a file of NAME=VALUE words without spaces that are added to Env at each start. It is no input: a change restarts nothing.
	EnvFile string `json:"envFile,omitempty"`

	// Oneshot units run to the end; Ready then tells that the work is done and is asked first, so that a finished one is
	// not run again. Otherwise Ready tells when a started process may be relied on.
	Oneshot bool  `json:"oneshot,omitempty"`
	Ready   Probe `json:"ready"`

	// Inputs are items whose change restarts the unit. What the process reloads by itself does not belong here.
	Inputs []Ref `json:"inputs,omitempty"`

	// DataGuard names data without which the unit must not begin anew.
	DataGuard DataGuard `json:"dataGuard,omitzero"`

	StopTimeout time.Duration `json:"stopTimeout,omitempty"` // between SIGTERM and SIGKILL; 0 means 10 s
	// KillChildren: stop every process of the unit's cgroup, not only the main one. False for what parents containers.
	KillChildren bool `json:"killChildren,omitempty"`
	OOMScore     int  `json:"oomScore,omitempty"`
}

// DataGuard is the memory that data has been there: when Mark exists and Data does not, the data is lost or not mounted, and the
// unit is not started over the hole. Mark is an item of the plan that comes after the unit.
type DataGuard struct {
	Mark string `json:"mark"` // a file
	Data string `json:"data"` // a file or folder
	// FreshStart is a file, optional. While it exists and Mark does not, nobody counts on Data yet, and each start begins anew: what a start
	// that was broken off has left may be less than the unit can go on from.
	FreshStart string `json:"freshStart,omitempty"`
}

// StaticPod is a manifest that the kubelet runs by itself, and, where Ready says so, the process that comes of it.
type StaticPod struct {
	Name     string `json:"name"` // of the component or of the user's pod; unique in the plan
	Path     string `json:"path"` // in the kubelet's folder of manifests
	Manifest string `json:"manifest"`
	// At, if set, is where the manifest lies, and Path a link to it: on a volume without which the pod must not start.
	At string `json:"at,omitempty"`

	// Component: the manifest has the marks PodUID and PodInputs, the pod runs one of the node's components, and it is ready when the
	// process of this very manifest runs and Ready says yes. Otherwise the pod is the user's, and ready when its manifest is there.
	Component bool      `json:"component,omitempty"`
	Ready     Probe     `json:"ready,omitzero"`
	Inputs    []Ref     `json:"inputs,omitempty"`   // as Unit's
	DataGuard DataGuard `json:"dataGuard,omitzero"` // as Unit's; looked at before the manifest is written, and by Guard before each start
	Image     string    `json:"image,omitempty"`    // for people
}

// Marks in the manifest of a component's pod, which the node replaces when it writes it: both follow from the manifest and from what
// the inputs hold, so that each content is a pod of its own.
const (
	PodUID    = "{{slipway-pod-uid}}"
	PodInputs = "{{slipway-pod-inputs}}"
)

// Precondition is a condition that somebody else makes true; waiting for it has no limit and always has a reason.
type Precondition struct {
	Name     string `json:"name"`
	Provider string `json:"provider"` // who makes it true, for status
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

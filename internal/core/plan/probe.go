// SPDX-License-Identifier: Apache-2.0

package plan

import "strings"

// ProbeKind says how readiness is asked.
type ProbeKind string

// The kinds of probe. The zero value means: ready as soon as it exists or has been started.
const (
	ProbeNone   ProbeKind = ""
	ProbeHTTP   ProbeKind = "http"   // GET URL answers 200
	ProbeTCP    ProbeKind = "tcp"    // Address accepts a connection
	ProbeExec   ProbeKind = "exec"   // Args exits 0 and its output contains Contains
	ProbeNotify ProbeKind = "notify" // the process sends READY=1 to $NOTIFY_SOCKET
	ProbeFile   ProbeKind = "file"   // Path exists and is not empty
	ProbeTask   ProbeKind = "task"   // the work of the agent's own task that Args name is done; asked without starting a process
)

// Probe is a question whose answer is "ready" or a reason why not.
type Probe struct {
	Kind     ProbeKind `json:"kind,omitempty"`
	URL      string    `json:"url,omitempty"`      // http
	CA       string    `json:"ca,omitempty"`       // http: path of the CA that signed the server
	Cert     string    `json:"cert,omitempty"`     // http: client certificate path
	Key      string    `json:"key,omitempty"`      // http: client key path
	Contains string    `json:"contains,omitempty"` // http, exec: the answer must contain this text
	Address  string    `json:"address,omitempty"`  // tcp: host:port; unix sockets as unix:///path
	Args     []string  `json:"args,omitempty"`     // exec, task
	Path     string    `json:"path,omitempty"`     // file
}

// String tells in words what the probe asks, for "waiting for …".
func (p Probe) String() string {
	switch p.Kind {
	case ProbeHTTP:
		if p.Contains != "" {
			return p.URL + " to say " + p.Contains
		}
		return p.URL + " to answer 200"
	case ProbeTCP:
		return p.Address + " to accept a connection"
	case ProbeExec:
		return strings.Join(p.Args, " ") + " to succeed"
	case ProbeNotify:
		return "the process to say READY=1"
	case ProbeFile:
		return p.Path + " to appear"
	case ProbeTask:
		return strings.Join(p.Args, " ") + " to be done"
	case ProbeNone:
	}
	return "nothing"
}

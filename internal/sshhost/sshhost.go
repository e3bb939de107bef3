// SPDX-License-Identifier: Apache-2.0

// Package sshhost reaches machines over SSH: it logs in with the operator's keys, checks the machine's own key, runs shell scripts
// as root, streams unix sockets, and sends files that are whole and verified on the far side or not there at all. It knows nothing
// of clusters, never takes a password, never accepts a host key silently, and puts no secret on a command line.
//
// Read [Target], [Hosts] and [Host] first.
//
//	hosts := sshhost.New(sshhost.Config{Home: "/home/ann", Log: log})
//	defer hosts.Close()
//	h := hosts.At(sshhost.Target{Name: "cp-1", Host: "192.0.2.4", User: "root", Port: 22})
//	out, err := h.Output(ctx, `uname -m; cat "$1"`, "/etc/machine-id")
//	conn, err := h.Dial(ctx, "/run/slipway/agent.sock")
package sshhost

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Target is a machine and how to log in there.
type Target struct {
	Name         string `json:"name"`                   // for people
	Host         string `json:"host"`                   // address
	User         string `json:"user,omitempty"`         // optional: root
	Port         int    `json:"port,omitempty"`         // optional: 22
	IdentityFile string `json:"identityFile,omitempty"` // optional: the agent's keys, then the usual files
	HostKey      string `json:"hostKey,omitempty"`      // optional: known_hosts decides; a public key or its fingerprint
	Jump         Jump   `json:"jump,omitzero"`          // optional: straight
}

// Jump is a host to go through. The zero value is none.
type Jump struct {
	User string `json:"user,omitempty"` // optional: the target's
	Host string `json:"host,omitempty"`
	Port int    `json:"port,omitempty"` // optional: 22
}

// Root is the user who needs no sudo.
const Root = "root"

func (t Target) user() string { return cmp.Or(t.User, Root) }

func (t Target) address() string { return hostPort(t.Host, t.Port) }

func hostPort(host string, port int) string {
	return net.JoinHostPort(host, strconv.Itoa(cmp.Or(port, 22)))
}

// through is the jump host as a target of its own.
func (t Target) through() Target {
	return Target{Name: "jump host " + t.Jump.Host, Host: t.Jump.Host, Port: t.Jump.Port, User: cmp.Or(t.Jump.User, t.user()), IdentityFile: t.IdentityFile}
}

// plain is a word that every shell takes as it is.
var plain = regexp.MustCompile(`^[A-Za-z0-9_./:=@%+-]+$`)

// CommandLine is what a person types to run a command there as root, or to log in: with the system's ssh, which leaves the command
// to the far user's shell.
func (t Target) CommandLine(tty bool, command ...string) string {
	words := []string{"ssh"}
	if tty {
		words = append(words, "-t")
	}
	if t.Port != 0 && t.Port != 22 {
		words = append(words, "-p", strconv.Itoa(t.Port))
	}
	if t.IdentityFile != "" {
		words = append(words, "-i", t.IdentityFile)
	}
	if t.Jump.Host != "" {
		words = append(words, "-J", t.through().user()+"@"+hostPort(t.Jump.Host, t.Jump.Port))
	}
	words = append(words, t.user()+"@"+t.Host)
	if len(command) > 0 {
		var far []string
		if t.user() != Root {
			far = append(far, "sudo")
		}
		for _, word := range command {
			if !plain.MatchString(word) {
				word = quote(word)
			}
			far = append(far, word)
		}
		words = append(words, quote(strings.Join(far, " ")))
	}
	return strings.Join(words, " ")
}

// Config is what all connections share.
type Config struct {
	Home        string        // the operator's home folder: ~/.ssh/known_hosts and keys
	AgentSocket string        // optional: SSH_AUTH_SOCK
	AcceptNew   bool          // write unknown host keys to known_hosts instead of refusing them; a changed one is always refused
	Program     string        // slipway on the far side; for sockets where sshd forwards none
	Patience    time.Duration // optional: for one connection; 10 s
	Log         *slog.Logger
}

// Hosts are the machines that are reached in one go. It is safe for concurrent use.
type Hosts struct {
	cfg  Config
	keys sync.Mutex // one writer of known_hosts

	mu    sync.Mutex // guards the fields below
	hosts map[Target]*Host
	ended bool
}

// New opens no connection.
func New(c Config) *Hosts {
	c.Patience = cmp.Or(c.Patience, 10*time.Second)
	return &Hosts{cfg: c, hosts: map[Target]*Host{}}
}

// At is a machine. It is connected when it is first needed, and again when the connection was lost.
func (s *Hosts) At(t Target) *Host {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.hosts[t]
	if !ok {
		h = &Host{Target: t, all: s, turn: make(chan struct{}, 1)}
		s.hosts[t] = h
	}
	return h
}

// Close ends all connections. Nothing of what runs on the far sides is waited for.
func (s *Hosts) Close() {
	s.mu.Lock()
	s.ended = true
	all := make([]*Host, 0, len(s.hosts))
	for _, h := range s.hosts {
		all = append(all, h)
	}
	s.mu.Unlock()
	for _, h := range all {
		h.drop()
	}
}

func (s *Hosts) closed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return fmt.Errorf("connect: %w", net.ErrClosed)
	}
	return nil
}

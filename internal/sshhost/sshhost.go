// SPDX-License-Identifier: Apache-2.0

// Package sshhost reaches machines over SSH: it logs in with the operator's keys, checks host keys, runs
// shell scripts as root, connects to unix sockets, and uploads files, which appear complete and verified or
// not at all. It knows nothing of clusters, never uses passwords, never accepts a host key silently, and puts
// no secret on a command line.
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

// Target is a machine and how to log in to it.
type Target struct {
	Name         string `json:"name"`                   // for messages
	Host         string `json:"host"`                   // address
	User         string `json:"user,omitempty"`         // optional: default root
	Port         int    `json:"port,omitempty"`         // optional: default 22
	IdentityFile string `json:"identityFile,omitempty"` // optional: default is the SSH agent's keys and the usual files
	HostKey      string `json:"hostKey,omitempty"`      // optional: public key or fingerprint; default is known_hosts
	Jump         Jump   `json:"jump,omitzero"`          // optional: default is a direct connection
}

// Jump is a jump host. The zero value means none.
type Jump struct {
	User string `json:"user,omitempty"` // optional: default is the target's user
	Host string `json:"host,omitempty"`
	Port int    `json:"port,omitempty"` // optional: default 22
}

// Root is the user that needs no sudo.
const Root = "root"

func (t Target) user() string { return cmp.Or(t.User, Root) }

func (t Target) address() string { return hostPort(t.Host, t.Port) }

func hostPort(host string, port int) string {
	return net.JoinHostPort(host, strconv.Itoa(cmp.Or(port, 22)))
}

// through is the jump host as a target.
func (t Target) through() Target {
	return Target{Name: "jump host " + t.Jump.Host, Host: t.Jump.Host, Port: t.Jump.Port, User: cmp.Or(t.Jump.User, t.user()), IdentityFile: t.IdentityFile}
}

// plain matches words that no shell changes.
var plain = regexp.MustCompile(`^[A-Za-z0-9_./:=@%+-]+$`)

// CommandLine is the command with which a user can run a command on the machine as root, or log in, with the
// system's ssh.
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

// Config is shared by all connections.
type Config struct {
	Home        string        // the operator's home directory, for ~/.ssh/known_hosts and keys
	AgentSocket string        // optional: SSH_AUTH_SOCK
	AcceptNew   bool          // add unknown host keys to known_hosts; changed keys are always refused
	Program     string        // path of slipway on the machines, for sockets that sshd does not forward
	Timeout     time.Duration // optional: for one connection attempt; default 10 s
	Log         *slog.Logger
}

// Hosts is a set of machines that share a Config. It is safe for concurrent use.
type Hosts struct {
	cfg  Config
	keys sync.Mutex // serializes access to known_hosts

	mu    sync.Mutex // guards the fields below
	hosts map[Target]*Host
	ended bool
}

// New returns a Hosts without any connection.
func New(c Config) *Hosts {
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	return &Hosts{cfg: c, hosts: map[Target]*Host{}}
}

// At returns a machine. It connects on first use, and again after a connection is lost.
func (s *Hosts) At(t Target) *Host {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.hosts[t]
	if !ok {
		h = &Host{Target: t, all: s, connecting: make(chan struct{}, 1)}
		s.hosts[t] = h
	}
	return h
}

// Close closes all connections. It does not wait for running commands.
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

// closed returns net.ErrClosed after Close.
func (s *Hosts) closed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return fmt.Errorf("connect: %w", net.ErrClosed)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package joinclient_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/node/joinclient"
)

// A faulty join service, or an attacker with the key of one, cannot make the machine accept any of these. Each case covers one check
// in grant.go or round.go.
func TestBadGrants(t *testing.T) {
	t.Parallel()
	ticket := func(change func(c *cluster, t *plan.Ticket)) func(c *cluster, s *script) {
		return func(c *cluster, s *script) {
			s.proof = func(s *stream) (*joinv1.JoinReply, error) {
				t := c.ticket()
				change(c, &t)
				return granted(c.encode(t), c.seal(s.hello, t.Plan.Node, c.secrets())), nil
			}
		}
	}
	sealed := func(seal func(c *cluster, s *stream) []byte) func(c *cluster, s *script) {
		return func(c *cluster, s *script) {
			s.proof = func(s *stream) (*joinv1.JoinReply, error) { return granted(c.encode(c.ticket()), seal(c, s)), nil }
		}
	}
	certificates := func(give func(c *cluster) map[string][]byte) func(c *cluster, s *script) {
		return func(c *cluster, s *script) {
			s.keys = func(*stream) (*joinv1.JoinReply, error) { return certified(give(c)), nil }
		}
	}
	good := func(c *cluster) []byte { return pemOf(c.sign(c.kubelet.Public(), "system:node:n1", c.ca, false)) }
	for name, tc := range map[string]struct {
		change func(c *cluster, s *script)
		want   string
	}{
		"no ticket": {func(_ *cluster, s *script) {
			s.proof = func(*stream) (*joinv1.JoinReply, error) { return granted(nil, nil), nil }
		}, "decode ticket"},
		"other version":           {ticket(func(_ *cluster, t *plan.Ticket) { t.Version = 7 }), "version 7"},
		"other cluster":           {ticket(func(_ *cluster, t *plan.Ticket) { t.Cluster = strings.Repeat("0", 32) }), "for cluster"},
		"no cluster":              {ticket(func(_ *cluster, t *plan.Ticket) { t.Cluster = "" }), "for cluster"},
		"other node":              {ticket(func(_ *cluster, t *plan.Ticket) { t.Plan.Node = "n2" }), `for node "n2"`},
		"no node":                 {ticket(func(_ *cluster, t *plan.Ticket) { t.Plan.Node = "" }), "node"},
		"file elsewhere":          {ticket(func(_ *cluster, t *plan.Ticket) { t.Files[0].Path = "/root/.ssh/authorized_keys" }), "authorized_keys"},
		"another join CA":         {ticket(func(c *cluster, t *plan.Ticket) { t.Files[0].Content = pemOf(newCluster(c.t).cert) }), "has the pin"},
		"two join CAs":            {ticket(func(c *cluster, t *plan.Ticket) { t.Files[0].Content = append(pemOf(c.cert), pemOf(c.cert)...) }), "join-ca.crt"},
		"join CA of garbage":      {ticket(func(_ *cluster, t *plan.Ticket) { t.Files[0].Content = []byte("x") }), "join-ca.crt"},
		"roster by another":       {ticket(func(c *cluster, t *plan.Ticket) { t.Files[1].Content = c.roster(certtest.Key(c.t)) }), "not signed"},
		"roster of garbage":       {ticket(func(_ *cluster, t *plan.Ticket) { t.Files[1].Content = []byte("x") }), "roster.json"},
		"roster without CA":       {ticket(func(_ *cluster, t *plan.Ticket) { t.Files = t.Files[1:] }), "not the join CA's certificate"},
		"sealed for another node": {sealed(func(c *cluster, s *stream) []byte { return c.seal(s.hello, "n2", c.secrets()) }), "not sealed to this machine"},
		"sealed for another machine": {sealed(func(c *cluster, s *stream) []byte {
			own := c.machine
			defer func() { c.machine = own }()
			c.machine = certtest.Key(c.t)
			return c.seal(s.hello, "n1", c.secrets())
		}), "not sealed to this machine"},
		"sealed garbage": {sealed(func(*cluster, *stream) []byte { return make([]byte, 100) }), "not sealed to this machine"},
		"secrets elsewhere": {sealed(func(c *cluster, s *stream) []byte {
			return c.seal(s.hello, "n1", []plan.TicketFile{{Path: "/etc/shadow"}})
		}), "secrets cannot be decoded"},
		"secrets of another form":     {sealed(func(c *cluster, s *stream) []byte { return c.seal(s.hello, "n1", "x") }), "secrets cannot be decoded"},
		"no certificates":             {certificates(func(*cluster) map[string][]byte { return nil }), "0 certificates"},
		"certificate of another name": {certificates(func(c *cluster) map[string][]byte { return map[string][]byte{"x": good(c)} }), "kubelet"},
		"certificate for another key": {certificates(func(c *cluster) map[string][]byte {
			return map[string][]byte{"kubelet": pemOf(c.sign(certtest.Key(c.t).Public(), "system:node:n1", c.ca, false))}
		}), "for another key"},
		"certificate of another node": {certificates(func(c *cluster) map[string][]byte {
			return map[string][]byte{"kubelet": pemOf(c.sign(c.kubelet.Public(), "system:node:n2", c.ca, false))}
		}), "is not for"},
		"certificate of a CA": {certificates(func(c *cluster) map[string][]byte {
			return map[string][]byte{"kubelet": pemOf(c.sign(c.kubelet.Public(), "system:node:n1", c.ca, true))}
		}), "is not for"},
		"a chain": {certificates(func(c *cluster) map[string][]byte {
			return map[string][]byte{"kubelet": append(good(c), pemOf(c.cert)...)}
		}), "exactly one PEM certificate"},
		"short nonce": {func(_ *cluster, s *script) {
			s.hello = func(*stream) (*joinv1.JoinReply, error) {
				return &joinv1.JoinReply{Message: &joinv1.JoinReply_Challenge{Challenge: &joinv1.Challenge{Nonce: make([]byte, 31)}}}, nil
			}
		}, "a nonce of 31 bytes"},
		"grant before the proof":        {func(c *cluster, s *script) { s.hello = s.proof }, "*joinv1.JoinReply_Grant"},
		"certificates before the grant": {func(_ *cluster, s *script) { s.proof = s.keys }, "*joinv1.JoinReply_Certificates"},
		"question without end":          {func(_ *cluster, s *script) { s.proof = s.hello }, "answer the verifier's question"},
		"grant instead of certificates": {func(_ *cluster, s *script) { s.keys = s.proof }, "*joinv1.JoinReply_Grant"},
		"empty message": {func(_ *cluster, s *script) {
			s.proof = func(*stream) (*joinv1.JoinReply, error) { return &joinv1.JoinReply{}, nil }
		}, "unexpected reply to the proof"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			synctest.Test(t, func(t *testing.T) {
				n := network{at(1): runs(func() script { s := c.honest(); tc.change(c, &s); return s })}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				config := c.config(n.dial, at(1))
				if name != "no node" {
					config.Node = "n1"
				}
				g, err := joinclient.Join(ctx, config)
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("got %v, %+v, want the machine to keep asking", err, g)
				}
				s := c.said()
				if last := s[len(s)-1]; !strings.Contains(last.Detail, tc.want) || strings.Contains(last.Detail, "secret\"") {
					t.Errorf("got status %v (%s), want detail %q", last, last.Detail, tc.want)
				}
			})
		})
	}
}

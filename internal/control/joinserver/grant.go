// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"context"
	"crypto/ecdh"
	"crypto/hpke"
	"encoding/json"
	"errors"
	"fmt"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/core/handshake"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// grant hands the machine its ticket: all of it or none.
func (j *joining) grant(ctx context.Context) (plan.Plan, error) {
	ticket, secrets, err := j.ticket(ctx)
	if err != nil {
		return plan.Plan{}, err
	}
	text, err := json.Marshal(ticket)
	if err != nil {
		return plan.Plan{}, fmt.Errorf("encode ticket: %w", err)
	}
	var sealed []byte
	if len(secrets) > 0 {
		err = j.work(ctx, func() error {
			sealed, err = j.seal(secrets)
			return err
		})
	}
	if err != nil {
		return plan.Plan{}, err
	}
	j.audit(Granted, fmt.Sprintf("pool %s, address %s, %d secrets", j.node.Pool, j.node.Address, len(secrets)))
	return ticket.Plan, j.send(&joinv1.JoinReply{Message: &joinv1.JoinReply_Grant{Grant: &joinv1.Grant{Ticket: text, Sealed: sealed}}})
}

// ticket plans for the record. What is planned for somebody else, or holds what only control planes may have, goes nowhere.
func (e *session) ticket(ctx context.Context) (plan.Ticket, []plan.TicketFile, error) {
	ticket, secrets, err := e.Tickets.For(ctx, e.node)
	switch {
	case err != nil:
		return plan.Ticket{}, nil, fmt.Errorf("plan for node %s: %w", e.node.Name, err)
	case ticket.Cluster != e.Cluster || ticket.Plan.Node != e.node.Name:
		return plan.Ticket{}, nil, fmt.Errorf("the ticket is of node %q in cluster %q", ticket.Plan.Node, ticket.Cluster)
	case e.ControlPlane(e.node.Pool):
		return ticket, secrets, nil
	case len(secrets) > 0:
		return plan.Ticket{}, nil, errors.New("the ticket of a worker comes with secrets of the control plane")
	}
	if _, found := ticket.Plan.Process("kube-apiserver"); found || len(ticket.Control) > 0 {
		return plan.Ticket{}, nil, errors.New("the ticket of a worker makes it a control plane")
	}
	return ticket, nil, nil
}

// seal encrypts to the key of the hello, which the machine's proof covers: nobody between can have put another there.
func (j *joining) seal(secrets []plan.TicketFile) ([]byte, error) {
	public, err := ecdh.X25519().NewPublicKey(j.hello.GetSealKey())
	if err != nil {
		return nil, deny(Malformed, "its seal key is none: %v", err)
	}
	to, err := hpke.NewDHKEMPublicKey(public)
	if err != nil {
		return nil, deny(Malformed, "its seal key is none: %v", err)
	}
	text, err := json.Marshal(secrets)
	if err != nil {
		return nil, fmt.Errorf("encode secrets: %w", err)
	}
	sealed, err := hpke.Seal(to, hpke.HKDFSHA256(), hpke.AES256GCM(), handshake.SealInfo(j.Cluster, j.node.Name, j.peer.Key), text)
	if err != nil {
		return nil, deny(Malformed, "nothing can be sealed to its key: %v", err)
	}
	return sealed, nil
}

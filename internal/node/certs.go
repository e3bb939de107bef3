// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// Custody is who has the keys of this machine; *ca.Local is one.
type Custody interface {
	// Life is zero where there is no certificate that can be read.
	Life(w pki.Want) (notBefore, notAfter, renewed time.Time, err error)
	// RenewNow has the certificate issued anew at the next look.
	RenewNow(w pki.Want) error
}

// Certificates answers from the disk.
func (s *service) Certificates(context.Context, *nodev1.CertificatesRequest) (*nodev1.CertificatesReply, error) {
	wants, err := s.agent.certificates()
	if err != nil {
		return nil, err
	}
	reply := &nodev1.CertificatesReply{}
	for _, w := range wants {
		notBefore, notAfter, renewed, err := s.agent.cfg.Custody.Life(w)
		if err != nil {
			return nil, fmt.Errorf("look at %s: %w", w.Name, err)
		}
		reply.Certificates = append(reply.Certificates, &nodev1.Certificate{
			Name: w.Name, Kind: string(w.Kind), Signer: w.Signer, Path: w.CertPath, Subject: w.CommonName,
			NotBeforeUnix: unixSeconds(notBefore), NotAfterUnix: unixSeconds(notAfter), RenewedUnix: unixSeconds(renewed),
		})
	}
	return reply, nil
}

// Renew marks the certificates and has the machine looked at.
func (s *service) Renew(_ context.Context, r *nodev1.RenewRequest) (*nodev1.RenewReply, error) {
	wants, err := s.agent.certificates()
	if err != nil {
		return nil, err
	}
	chosen, err := choose(wants, r.GetNames())
	if err != nil {
		return nil, err
	}
	reply := &nodev1.RenewReply{}
	for _, w := range chosen {
		if err := s.agent.cfg.Custody.RenewNow(w); err != nil {
			return nil, status.Error(codes.FailedPrecondition, err.Error())
		}
		reply.Names = append(reply.Names, w.Name)
	}
	if !s.agent.lookNow() {
		return nil, status.Error(codes.FailedPrecondition, "the control role of this machine has ended: run slipway up, which begins it anew and renews, too")
	}
	return reply, nil
}

// certificates are the plan's, in its order.
func (a *Agent) certificates() (wants []pki.Want, err error) {
	if a.cfg.Custody == nil {
		return nil, status.Error(codes.Unimplemented, "this agent has no custody of keys")
	}
	for _, e := range a.current().Want.Entries {
		if c, ok := e.Item.(plan.Cert); ok && (c.Want.Kind == pki.Leaf || c.Want.Kind == pki.CA) {
			wants = append(wants, c.Want)
		}
	}
	if len(wants) == 0 {
		return nil, status.Error(codes.FailedPrecondition, "this machine has no plan yet, so it has no certificates")
	}
	return wants, nil
}

// choose takes the named ones, or all leaves.
func choose(wants []pki.Want, names []string) (chosen []pki.Want, err error) {
	var known, unknown []string
	for _, w := range wants {
		if w.Kind == pki.Leaf {
			known = append(known, w.Name)
		}
		if len(names) == 0 && w.Kind == pki.Leaf || slices.Contains(names, w.Name) {
			chosen = append(chosen, w)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(chosen, func(w pki.Want) bool { return w.Name == name }) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return nil, status.Errorf(codes.NotFound, "this node has no certificate %s; it has %s", strings.Join(unknown, ", "), strings.Join(known, ", "))
	}
	return chosen, nil
}

func unixSeconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

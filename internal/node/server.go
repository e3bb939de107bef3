// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/reconcile"
)

const (
	maxPlan     = 16 << 20               // bytes of a message
	stopTimeout = 100 * time.Millisecond // for the calls in progress when the agent ends; a Watch does not end by itself
)

// serve answers calls on the unix socket until ctx ends. The socket's permissions are the authentication: it has mode 0600 and is in
// a directory of root.
func (a *Agent) serve(ctx context.Context) error {
	if a.cfg.Socket == "" {
		<-ctx.Done()
		return nil
	}
	if err := os.Remove(a.cfg.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "unix", a.cfg.Socket)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(a.cfg.Socket, 0o600); err != nil {
		return fmt.Errorf("protect socket: %w", err)
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(maxPlan))
	nodev1.RegisterNodeServer(s, &service{agent: a})
	if a.cfg.Register != nil {
		a.cfg.Register(s)
	}
	go func() {
		<-ctx.Done()
		stop := time.AfterFunc(stopTimeout, s.Stop)
		s.GracefulStop() // the client of a reset receives its reply
		stop.Stop()
	}()
	if err := s.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// service translates between the gRPC service and the agent.
type service struct {
	nodev1.UnimplementedNodeServer
	agent *Agent
}

// Facts returns the machine's facts and the state of its node lock.
func (s *service) Facts(context.Context, *nodev1.FactsRequest) (*nodev1.FactsReply, error) {
	reply := &nodev1.FactsReply{Version: s.agent.cfg.Version, Facts: s.agent.cfg.Facts.Encode(), Key: string(s.agent.cfg.Key)}
	if e := s.agent.enrolment; e != nil {
		now := e.State()
		reply.Lock, reply.Cluster, reply.Node = now.Phase, now.Cluster, now.Node
	}
	return reply, nil
}

// Apply stores and starts a plan.
func (s *service) Apply(ctx context.Context, r *nodev1.ApplyRequest) (*nodev1.ApplyReply, error) {
	p, err := plan.Decode(r.GetPlan())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if e := s.agent.enrolment; e != nil && e.State().Phase != "committed" {
		return nil, status.Error(codes.FailedPrecondition, "this machine is not in a cluster yet: it accepts a plan from init or join only")
	}
	changed, err := s.agent.Apply(ctx, p, r.GetControl())
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &nodev1.ApplyReply{Changed: changed}, nil
}

// Watch sends all items of the board, then all changes.
func (s *service) Watch(_ *nodev1.WatchRequest, stream grpc.ServerStreamingServer[nodev1.Event]) error {
	changes := s.agent.board.Subscribe()
	defer changes.End()
	all, _ := s.agent.board.All()
	for _, item := range all {
		if err := stream.Send(s.event(item)); err != nil {
			return err
		}
	}
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case <-changes.C:
			for _, item := range changes.Take() {
				if err := stream.Send(s.event(item)); err != nil {
					return err
				}
			}
		}
	}
}

func (s *service) event(item reconcile.Status) *nodev1.Event {
	all, steps := s.agent.board.All()
	return &nodev1.Event{Item: wireItem(item), Converged: s.agent.converged(all), Steps: int32(steps)}
}

// Status returns all items and units.
func (s *service) Status(context.Context, *nodev1.StatusRequest) (*nodev1.StatusReply, error) {
	now := s.agent.current()
	all, steps := s.agent.board.All()
	reply := &nodev1.StatusReply{
		Cluster: now.Want.Cluster, Node: now.Want.Node, Release: now.Want.Release, Steps: int32(steps), Converged: s.agent.converged(all),
	}
	for _, item := range all {
		reply.Items = append(reply.Items, wireItem(item))
	}
	for _, u := range s.agent.cfg.Host.Units() {
		reply.Units = append(reply.Units, &nodev1.Unit{
			Name: u.Name, Pid: int64(u.PID), SinceUnixNano: unixNano(u.Since), Ready: u.Ready, Restarts: int32(u.Restarts),
			LastExit: u.LastExit, WaitingFor: u.Waiting, Oneshot: u.Oneshot,
		})
	}
	return reply, nil
}

func wireItem(i reconcile.Status) *nodev1.Item {
	w := &nodev1.Item{
		Ref: i.Ref, Phase: string(i.Phase), SinceUnixNano: unixNano(i.Since), WaitingFor: i.What, Provider: i.Who, Error: i.Error,
	}
	if i.Step != nil {
		w.Verb, w.Why = string(i.Step.Verb), i.Step.Why
	}
	return w
}

// unixNano returns 0 for an unknown time.
func unixNano(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// Join stores the cluster to join.
func (s *service) Join(ctx context.Context, r *nodev1.JoinRequest) (*nodev1.JoinReply, error) {
	e := s.agent.enrolment
	if e == nil {
		return nil, status.Error(codes.Unimplemented, "this agent does not support join")
	}
	err := e.Join(ctx, JoinTarget{Endpoints: r.GetEndpoints(), Pin: pin.Pin(r.GetPin()), Token: r.GetToken(), Node: r.GetNode()})
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &nodev1.JoinReply{}, nil
}

// Reset makes the machine free. It continues if the client disconnects.
func (s *service) Reset(ctx context.Context, r *nodev1.ResetRequest) (*nodev1.ResetReply, error) {
	e := s.agent.enrolment
	if e == nil {
		return nil, status.Error(codes.Unimplemented, "this agent does not support reset")
	}
	if err := e.Reset(context.WithoutCancel(ctx), r.GetCluster(), r.GetLost()); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &nodev1.ResetReply{}, nil
}

// Diff returns the steps from the machine's state to a plan.
func (s *service) Diff(ctx context.Context, r *nodev1.DiffRequest) (*nodev1.DiffReply, error) {
	want, err := plan.Decode(r.GetPlan())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	steps, unknown, err := s.agent.Diff(ctx, want)
	if err != nil {
		return nil, err
	}
	return &nodev1.DiffReply{
		Steps: wireSteps(steps), Unknown: wireSteps(unknown), ControlChanged: !bytes.Equal(s.agent.current().Control, r.GetControl()),
	}, nil
}

func wireSteps(steps []plan.Step) []*nodev1.Step {
	var out []*nodev1.Step
	for _, s := range steps {
		out = append(out, &nodev1.Step{Verb: string(s.Verb), Ref: s.Ref.String(), Why: s.Why})
	}
	return out
}

// Diff returns the steps from the machine's state to a plan, and the items whose state is unknown. It only observes. While the loop
// is running, the result may be outdated at once.
func (a *Agent) Diff(ctx context.Context, want plan.Plan) (steps, unknown []plan.Step, err error) {
	now := a.current()
	before := merge(now.Want.Plan, now.Before.Plan)
	have := plan.Observed{}
	observe := func(e plan.Entry) {
		s, err := a.cfg.Host.Observe(ctx, e)
		switch {
		case err != nil:
			unknown = append(unknown, plan.Step{Ref: e.Ref, Why: err.Error()})
		case s.Existence == plan.Unknown && e.Item.Kind() != plan.KindPrecondition:
			unknown = append(unknown, plan.Step{Ref: e.Ref, Why: s.Detail})
		default:
			have[e.Ref] = s
		}
	}
	for _, e := range plan.Removed(want, before) {
		observe(e)
	}
	changing := map[plan.Ref]bool{}
	for _, e := range want.Entries { // in order: a unit can be observed only after its inputs
		observe(e)
		markInput(e, have, changing)
		if _, ok := plan.Next(e, have[e.Ref]); ok {
			changing[e.Ref] = true
		}
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
	}
	return plan.Diff(want, before, have), unknown, nil
}

// markInput marks an item as different if one of its inputs is about to change, which the disk does not show yet.
func markInput(e plan.Entry, have plan.Observed, changing map[plan.Ref]bool) {
	s := have[e.Ref]
	if s.Existence != plan.Present || !s.Matches {
		return
	}
	for _, in := range plan.Inputs(e.Item) {
		if changing[in] {
			s.Matches, s.Detail = false, "its input "+in.String()+" changes"
			have[e.Ref] = s
			return
		}
	}
}

// Custody manages the keys of this machine; *ca.Local implements it.
type Custody interface {
	// Life returns zero times if there is no readable certificate.
	Life(w pki.Want) (notBefore, notAfter, renewed time.Time, err error)
	// RenewNow makes the next probe renew the certificate.
	RenewNow(w pki.Want) error
}

// Certificates returns the certificates on the disk.
func (s *service) Certificates(context.Context, *nodev1.CertificatesRequest) (*nodev1.CertificatesReply, error) {
	wants, err := s.agent.certificates()
	if err != nil {
		return nil, err
	}
	reply := &nodev1.CertificatesReply{}
	for _, w := range wants {
		notBefore, notAfter, renewed, err := s.agent.cfg.Custody.Life(w)
		if err != nil {
			return nil, fmt.Errorf("read certificate %s: %w", w.Name, err)
		}
		reply.Certificates = append(reply.Certificates, &nodev1.Certificate{
			Name: w.Name, Kind: string(w.Kind), Signer: w.Signer, Path: w.CertPath, Subject: w.CommonName,
			NotBeforeUnix: unixSeconds(notBefore), NotAfterUnix: unixSeconds(notAfter), RenewedUnix: unixSeconds(renewed),
		})
	}
	return reply, nil
}

// Renew renews the named certificates, or all leaf certificates.
func (s *service) Renew(_ context.Context, r *nodev1.RenewRequest) (*nodev1.RenewReply, error) {
	wants, err := s.agent.certificates()
	if err != nil {
		return nil, err
	}
	chosen, err := selectCertificates(wants, r.GetNames())
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
	if !s.agent.probeNow() {
		return nil, status.Error(codes.FailedPrecondition, "the control role of this machine has ended: run slipway up, which restarts it and renews the certificates")
	}
	return reply, nil
}

// certificates returns the CAs and leaf certificates of the plan, in its order.
func (a *Agent) certificates() (wants []pki.Want, err error) {
	if a.cfg.Custody == nil {
		return nil, status.Error(codes.Unimplemented, "this agent does not manage certificates")
	}
	for _, e := range a.current().Want.Entries {
		if c, ok := e.Item.(plan.Cert); ok && (c.Want.Kind == pki.Leaf || c.Want.Kind == pki.CA) {
			wants = append(wants, c.Want)
		}
	}
	if len(wants) == 0 {
		return nil, status.Error(codes.FailedPrecondition, "this machine does not have a plan yet, so it has no certificates")
	}
	return wants, nil
}

// selectCertificates returns the named certificates, or all leaf certificates if there are no names.
func selectCertificates(wants []pki.Want, names []string) (chosen []pki.Want, err error) {
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

// Trace returns the spans of the current run, or of the last one that changed something.
func (s *service) Trace(context.Context, *nodev1.TraceRequest) (*nodev1.TraceReply, error) {
	spans, err := s.agent.trace()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &nodev1.TraceReply{Spans: spans}, nil
}

func (a *Agent) trace() ([]byte, error) {
	if _, steps := a.board.All(); steps == 0 {
		last, err := os.ReadFile(a.cfg.TraceFile)
		if !errors.Is(err, fs.ErrNotExist) {
			return last, err
		}
	}
	return json.Marshal(a.board.Spans())
}

// storeTrace writes the spans of this run to the disk once everything is ready, if the run has changed something. So the trace of
// the node's start is available after a restart of the agent.
func (a *Agent) storeTrace(ctx context.Context) error {
	changes := a.board.Subscribe()
	defer changes.End()
	for {
		all, steps := a.board.All()
		if allReady(all) {
			if steps == 0 {
				return nil
			}
			spans, err := json.Marshal(a.board.Spans())
			if err == nil {
				err = durable.WriteFile(a.cfg.TraceFile, 0o600, spans)
			}
			if err != nil {
				a.cfg.Log.Warn("write trace", "error", err)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changes.C:
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package etcdtest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/testkit"
)

// Conformance checks everything that control/members relies on.
func Conformance(t *testing.T, lab func(t *testing.T) Lab) {
	for name, test := range map[string]func(t *testing.T, lab Lab){
		"a learner becomes a voter":           grows,
		"refusals are typed":                  refuses,
		"no quorum is an error":               unknown,
		"the leader can be moved and removed": moves,
		"data of a removed member is refused": removed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, lab(t))
		})
	}
}

func votes(t *testing.T, c Client, want string) []membership.Member {
	t.Helper()
	all, err := c.Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := Votes(all); got != want {
		t.Fatalf("members: got %q, want %q", got, want)
	}
	return all
}

func isErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

func grows(t *testing.T, lab Lab) {
	ctx := t.Context()
	lab.Form(t, "a")
	a := lab.Client(t, "a")
	if err := a.Put(ctx, "k", "v"); err != nil {
		t.Fatal(err)
	}
	one := votes(t, a, "a:voter")[0]
	if one.PeerURL != lab.Peer("a") || one.ClientURL == "" || !one.Started {
		t.Errorf("first member: got %+v", one)
	}
	if one, err := a.Health(ctx, one); err != nil || !one.Healthy || !one.Leader {
		t.Errorf("health of a single member: got %+v, %v", one, err)
	}
	id, all, err := a.AddLearner(ctx, lab.Peer("b"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := Votes(all), Votes(votes(t, a, "a:voter "+lab.Peer("b")+":learner")); got != want {
		t.Errorf("AddLearner returned the members %q, want %q", got, want)
	}
	isErr(t, "promote a learner that never started", a.Promote(ctx, id), membership.ErrNotCaughtUp)
	learner, _ := membership.Find(all, "", lab.Peer("b"))
	if learner, err := a.Health(ctx, learner); err != nil || learner.Healthy || learner.Started || learner.ID != id {
		t.Errorf("health of a learner that never started: got %+v, %v", learner, err)
	}
	if err := lab.Start(t, "b", Permit("b", lab.Peer("b"), all), false); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, time.Minute, "promote b", func() error { return a.Promote(ctx, id) })
	votes(t, a, "a:voter b:voter")
	b := lab.Client(t, "b")
	testkit.Until(t, time.Minute, "read by b", func() error {
		got, err := b.Get(ctx, "k")
		if err == nil && got != "v" {
			t.Fatalf("b: got %q, want %q", got, "v")
		}
		return err
	})
}

func refuses(t *testing.T, lab Lab) {
	ctx := t.Context()
	lab.Form(t, "a")
	a := lab.Client(t, "a")
	voter := votes(t, a, "a:voter")[0]
	isErr(t, "promote a voter", a.Promote(ctx, voter.ID), membership.ErrNotLearner)
	isErr(t, "promote an unknown member", a.Promote(ctx, 42), membership.ErrNotFound)
	isErr(t, "remove an unknown member", a.Remove(ctx, 42), membership.ErrNotFound)
	if err := a.MoveLeader(ctx, 42); err != nil {
		t.Errorf("move the leader away from an unknown member: %v", err)
	}
	if err := a.MoveLeader(ctx, voter.ID); err == nil {
		t.Error("MoveLeader succeeded with only one voter")
	}
	id, _, err := a.AddLearner(ctx, lab.Peer("b"))
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = a.AddLearner(ctx, lab.Peer("b"))
	isErr(t, "add the same member again", err, membership.ErrExists)
	_, _, err = a.AddLearner(ctx, lab.Peer("c"))
	isErr(t, "add a second learner", err, membership.ErrBusy)
	if err := a.Remove(ctx, id); err != nil {
		t.Fatal(err)
	}
	votes(t, a, "a:voter")
}

func unknown(t *testing.T, lab Lab) {
	ctx := t.Context()
	lab.Form(t, "a")
	a := lab.Client(t, "a")
	Join(t, lab, a, "b")
	all := votes(t, a, "a:voter b:voter")
	_, _, err := a.AddLearner(ctx, lab.Peer("c")) // b was connected only a moment ago
	isErr(t, "add a member too soon", err, membership.ErrUnsettled)
	lab.Kill(t, "b")
	testkit.Until(t, time.Minute, "no quorum", func() error {
		list, err := a.Members(ctx)
		if err != nil {
			return nil //nolint:nilerr // the error is what the test waits for
		}
		return fmt.Errorf("members %q", Votes(list))
	})
	b, _ := membership.Find(all, "b", "")
	if b, err := a.Health(ctx, b); err != nil || b.Healthy {
		t.Errorf("health of a dead member: got %+v, %v", b, err)
	}
	one, _ := membership.Find(all, "a", "")
	testkit.Until(t, time.Minute, "a has no leader", func() error {
		one, err := a.Health(ctx, one)
		if err == nil && one.Healthy {
			return fmt.Errorf("got %+v", one)
		}
		return err
	})
	if err := a.Remove(ctx, b.ID); err == nil {
		t.Error("Remove succeeded without a quorum")
	}
	if err := lab.Start(t, "b", nil, false); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, time.Minute, "members after the restart of b", func() error { _, err := a.Members(ctx); return err })
	votes(t, a, "a:voter b:voter")
}

func moves(t *testing.T, lab Lab) {
	ctx := t.Context()
	lab.Form(t, "a")
	a := lab.Client(t, "a")
	if err := a.Put(ctx, "k", "v"); err != nil {
		t.Fatal(err)
	}
	Join(t, lab, a, "b")
	one, _ := membership.Find(votes(t, a, "a:voter b:voter"), "a", "")
	if one, err := a.Health(ctx, one); err != nil || !one.Leader {
		t.Fatalf("got %+v, %v, want the leader", one, err)
	}
	if err := a.MoveLeader(ctx, one.ID); err != nil {
		t.Fatal(err)
	}
	if one, err := a.Health(ctx, one); err != nil || one.Leader {
		t.Errorf("after MoveLeader: got %+v, %v, want another leader", one, err)
	}
	b := lab.Client(t, "b")
	testkit.Until(t, time.Minute, "remove a", func() error { // etcd requires that b has been connected for five seconds
		err := a.Remove(ctx, one.ID)
		if errors.Is(err, membership.ErrNotFound) {
			return nil
		}
		return err
	})
	testkit.Until(t, time.Minute, "members of b alone", func() error { _, err := b.Members(ctx); return err })
	votes(t, b, "b:voter")
	if got, err := b.Get(ctx, "k"); err != nil || got != "v" {
		t.Errorf("b alone: got %q, %v, want %q", got, err, "v")
	}
}

func removed(t *testing.T, lab Lab) {
	ctx := t.Context()
	lab.Form(t, "a")
	a := lab.Client(t, "a")
	id, all, err := a.AddLearner(ctx, lab.Peer("b"))
	if err != nil {
		t.Fatal(err)
	}
	if err := lab.Start(t, "b", Permit("b", lab.Peer("b"), all), false); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, time.Minute, "b starts", func() error {
		if got := Votes(votesOf(t, a)); got != "a:voter b:learner" {
			return fmt.Errorf("members %q", got)
		}
		return nil
	})
	if err := a.Remove(ctx, id); err != nil {
		t.Fatal(err)
	}
	lab.Kill(t, "b")
	next, all, err := a.AddLearner(ctx, lab.Peer("b"))
	if err != nil || next == id {
		t.Fatalf("added again: got ID %x, error %v, want an ID other than %x", next, err, id)
	}
	permit := Permit("b", lab.Peer("b"), all)
	if err := lab.Start(t, "b", permit, false); err == nil {
		t.Error("etcd started with the data of a removed member")
	}
	lab.Kill(t, "b")
	if err := lab.Start(t, "b", permit, true); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, time.Minute, "promote b", func() error { return a.Promote(ctx, next) })
	votes(t, a, "a:voter b:voter")
}

func votesOf(t *testing.T, c Client) []membership.Member {
	t.Helper()
	all, err := c.Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

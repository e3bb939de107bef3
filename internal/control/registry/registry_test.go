// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/registry/registrytest"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/wait"
)

func TestRegisterByAllControlPlanes(t *testing.T) {
	t.Parallel()
	store := registrytest.NewMemory()
	var document []admission.Node
	for i := range 20 {
		n := mainNode()
		n.Name, n.Pool, n.Key, n.Address, n.Index = fmt.Sprintf("dev-worker-%02d", i), "worker", testPin(i+1), address(i+1), i+1
		n.PodCIDR, _ = admission.PodCIDR(mustPolicy().PodCIDR, 24, n.Index)
		document = append(document, n)
	}
	var wg sync.WaitGroup
	for range 3 {
		r := registry.New(store, start)
		wg.Go(func() {
			for range 5 {
				if err := r.Register(t.Context(), document); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	r := registry.New(store, start)
	got, err := r.Nodes(t.Context())
	if len(got) != len(document) || err != nil {
		t.Fatalf("%d nodes, %v", len(got), err)
	}
	version := versionOf(t, store)
	if err := r.Register(t.Context(), document); err != nil || versionOf(t, store) != version {
		t.Errorf("the same document was written again: %v", err)
	}
	bad := document[3]
	bad.Name, bad.Key = "other", testPin(99)
	if err := r.Register(t.Context(), []admission.Node{bad, mainNode()}); err == nil || !strings.Contains(err.Error(), "the same index 4") {
		t.Errorf("two nodes with the same index: got %v", err)
	}
	if _, err := r.Node(t.Context(), "dev-main-0"); err != nil {
		t.Errorf("the valid node of the two was not registered: %v", err)
	}
}

func mustPolicy() admission.Policy { p, _ := policy(context.Background()); return p }

func versionOf(t *testing.T, store registry.Store) string {
	t.Helper()
	item, err := store.Get(t.Context(), "nodes", "all")
	if err != nil {
		t.Fatal(err)
	}
	return item.Version
}

// Before nodes are registered, Nodes does not return an empty list, and no machine is admitted.
func TestBeforeFirstRegister(t *testing.T) {
	t.Parallel()
	r := registry.New(registrytest.NewMemory(), start).WithPolicy(policy)
	if nodes, err := r.Nodes(t.Context()); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("%v, %v", nodes, err)
	}
	var wait *wait.Error
	if _, err := r.Admit(t.Context(), join(6, "")); !errors.As(err, &wait) || wait.What == "" || wait.Since.IsZero() {
		t.Errorf("admit: %v", err)
	}
	if err := r.DeleteNode(t.Context(), "dev-main-0"); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("delete: %v", err)
	}
	if err := r.Register(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if _, err := r.Nodes(t.Context()); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("after registering no nodes: got error %v, want ErrNotFound", err)
	}
	if _, err := registry.New(registrytest.NewMemory(), start).Admit(t.Context(), join(6, "")); err == nil || reasonOf(err) != "" {
		t.Errorf("without a policy: %v", err)
	}
}

func TestUpdateNode(t *testing.T) {
	t.Parallel()
	store := registrytest.NewMemory()
	r := begun(t, store, start)
	var wg sync.WaitGroup
	for range 20 { // each like a separate process
		other := registry.New(store, start)
		wg.Go(func() {
			if _, err := other.UpdateNode(t.Context(), "dev-main-0", func(n *admission.Node) error { n.Kubernetes += "x"; return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n, err := r.Node(t.Context(), "dev-main-0"); err != nil || n.Kubernetes != strings.Repeat("x", 20) {
		t.Errorf("a change was lost: %q, %v", n.Kubernetes, err)
	}
	version := versionOf(t, store)
	boom := errors.New("boom")
	for name, tt := range map[string]struct {
		node   string
		change func(*admission.Node) error
		want   error
		words  string
	}{
		"nothing":  {"dev-main-0", func(*admission.Node) error { return nil }, nil, ""},
		"error":    {"dev-main-0", func(n *admission.Node) error { n.Removing = true; return boom }, boom, ""},
		"unknown":  {"dev-main-7", func(*admission.Node) error { return nil }, registry.ErrNotFound, ""},
		"renaming": {"dev-main-0", func(n *admission.Node) error { n.Name = "x"; return nil }, nil, "cannot change"},
		"range":    {"dev-main-0", func(n *admission.Node) error { n.Index = 7; return nil }, nil, "never change"},
	} {
		_, err := r.UpdateNode(t.Context(), tt.node, tt.change)
		if tt.want != nil && !errors.Is(err, tt.want) || (err != nil) != (tt.want != nil || tt.words != "") || err != nil && !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if versionOf(t, store) != version {
		t.Error("a change without effect was written")
	}
}

// A machine gets a name, another machine asks for it and is approved, and then the node is removed.
func TestApproveAndDelete(t *testing.T) {
	t.Parallel()
	r := begun(t, registrytest.NewMemory(), start)
	admit := func(key int, spec registry.TokenSpec) (admission.Node, error) {
		t.Helper()
		token, _, err := r.CreateToken(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		return r.Admit(t.Context(), join(key, token.ID))
	}
	first, err := admit(1, registry.TokenSpec{Pool: "worker"})
	if err != nil {
		t.Fatal(err)
	}
	var wait *wait.Error
	if _, err := admit(2, registry.TokenSpec{Node: first.Name}); !errors.As(err, &wait) || wait.Who != "slipway node approve dev-worker-0" {
		t.Fatalf("another machine with the same name: got %v, want a wait for approval", err)
	}
	if _, err := r.Admit(t.Context(), join(2, "")); !errors.As(err, &wait) {
		t.Errorf("second request: got %v, want a wait", err)
	}
	if waits, err := r.Waiting(t.Context(), testPin(2)); err != nil || !waits {
		t.Errorf("waiting: %v, %v", waits, err)
	}
	if n, err := r.Admit(t.Context(), join(1, "")); err != nil || n.Name != first.Name {
		t.Errorf("the machine that has the name: %v", err)
	}
	if key, err := r.Approve(t.Context(), first.Name); err != nil || key != testPin(2) {
		t.Fatalf("approve: %s, %v", key, err)
	}
	if _, err := r.Approve(t.Context(), first.Name); err == nil {
		t.Error("approved twice")
	}
	second, err := r.Admit(t.Context(), join(2, ""))
	if err != nil || second.PodCIDR != first.PodCIDR || second.Index != first.Index {
		t.Errorf("after approval: %+v, %v", second, err)
	}
	if _, err := r.Admit(t.Context(), join(1, "")); reasonOf(err) != admission.KeyRemoved {
		t.Errorf("the replaced machine: got %v, want KeyRemoved", err)
	}
	testDeleted(t, r, second)
}

func testDeleted(t *testing.T, r *registry.Registry, gone admission.Node) {
	t.Helper()
	for range 2 {
		if err := r.DeleteNode(t.Context(), gone.Name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Node(t.Context(), gone.Name); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("removed node: got error %v, want ErrNotFound", err)
	}
	if _, err := r.Admit(t.Context(), join(2, "")); reasonOf(err) != admission.KeyRemoved {
		t.Errorf("removed machine: got %v, want KeyRemoved", err)
	}
	if err := r.Register(t.Context(), []admission.Node{gone, mainNode()}); err != nil {
		t.Error(err)
	}
	if nodes, err := r.Nodes(t.Context()); err != nil || len(nodes) != 1 {
		t.Errorf("after registering a removed node again: got nodes %v, error %v, want one node", nodes, err)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	store, now := registrytest.NewMemory(), start()
	r := begun(t, store, func() time.Time { return now })
	for name, tt := range map[string]struct {
		spec registry.TokenSpec
		want string
	}{
		"too long":     {registry.TokenSpec{Pool: "worker", TTL: admission.MaxTTL + 1}, "15m0s"},
		"negative":     {registry.TokenSpec{Pool: "worker", TTL: -1}, "a second"},
		"unknown pool": {registry.TokenSpec{Pool: "gpu"}, "gpu"},
		"bad name":     {registry.TokenSpec{Pool: "worker", Node: "A"}, "name"},
		"other pool":   {registry.TokenSpec{Pool: "worker", Node: "dev-main-0"}, "in pool main"},
		"bad key":      {registry.TokenSpec{Pool: "worker", Key: "x"}, "pin"},
		"known key":    {registry.TokenSpec{Pool: "worker", Key: testPin(1000)}, "is node dev-main-0"},
	} {
		if _, text, err := r.CreateToken(t.Context(), tt.spec); err == nil || text != "" || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if only, _, err := r.CreateToken(t.Context(), registry.TokenSpec{}); err != nil || only.Pool != "worker" {
		t.Errorf("no pool named: got %q, error %v, want the only pool of workers", only.Pool, err)
	} else if err := r.RevokeToken(t.Context(), only.ID); err != nil {
		t.Error(err)
	}
	two := r.WithPolicy(func(context.Context) (admission.Policy, error) {
		return admission.Policy{Pools: map[string]admission.Pool{"main": {ControlPlane: true}, "a": {}, "b": {}}}, nil
	})
	if _, _, err := two.CreateToken(t.Context(), registry.TokenSpec{}); err == nil || !strings.Contains(err.Error(), "name one of a, b, main") {
		t.Errorf("no pool named, two pools of workers: got error %v", err)
	}
	token, text, err := r.CreateToken(t.Context(), registry.TokenSpec{Pool: "worker", Node: "edge", Key: testPin(6), TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	item, err := store.Get(t.Context(), "token", token.ID)
	secret := text[strings.LastIndex(text, ".")+1:]
	if err != nil || strings.Contains(string(item.Data), secret) || len(secret) < 32 || strings.Contains(fmt.Sprintf("%+v", token), secret) {
		t.Errorf("the secret is stored: %s, %v", item.Data, err)
	}
	if list, err := r.Tokens(t.Context()); err != nil || len(list) != 1 || cmp.Diff(token, list[0]) != "" {
		t.Errorf("%+v, %v", list, err)
	}
	now = now.Add(time.Minute)
	if list, err := r.Tokens(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("got expired tokens %+v, error %v", list, err)
	}
	if _, err := r.Admit(t.Context(), join(6, token.ID)); reasonOf(err) != admission.TokenExpired {
		t.Errorf("expired: %v", err)
	}
	now = now.Add(admission.MaxTTL + 1)
	if _, err := r.Tokens(t.Context()); err != nil {
		t.Error(err)
	}
	if _, ok, err := r.Token(t.Context(), token.ID); ok || err != nil {
		t.Errorf("an old token was not deleted: %v", err)
	}
	token, _, err = r.CreateToken(t.Context(), registry.TokenSpec{Pool: "worker"})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.RevokeToken(t.Context(), token.ID); err != nil {
		t.Error(err)
	}
	if _, err := r.Admit(t.Context(), join(6, token.ID)); reasonOf(err) != admission.TokenUnknown {
		t.Errorf("revoked: %v", err)
	}
	if err := r.RevokeToken(t.Context(), token.ID); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("revoked again: %v", err)
	}
}

// If a token is revoked and used at the same time, all control planes agree on whether the machine was admitted.
func TestRevokeRace(t *testing.T) {
	t.Parallel()
	for range 200 {
		store := registrytest.NewMemory()
		a, b := begun(t, store, start), begun(t, store, start)
		token, _, err := a.CreateToken(t.Context(), registry.TokenSpec{Pool: "worker"})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var admitted, revoked error
		wg.Go(func() { _, admitted = a.Admit(t.Context(), join(6, token.ID)) })
		wg.Go(func() { revoked = b.RevokeToken(t.Context(), token.ID) })
		wg.Wait()
		if revoked != nil || admitted != nil && reasonOf(admitted) != admission.TokenUnknown {
			t.Fatalf("revoke: %v, admit: %v", revoked, admitted)
		}
		if _, known, err := a.ByKey(t.Context(), testPin(6)); err != nil || known != (admitted == nil) {
			t.Fatalf("admit: %v, known: %v, %v", admitted, known, err)
		}
	}
}

func TestRecordsOfOtherPackages(t *testing.T) {
	t.Parallel()
	type other struct{ Holder string }
	r := registry.New(registrytest.NewMemory(), start)
	var got other
	if _, err := r.Load(t.Context(), "other", "a", &got); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("load a missing record: got error %v, want ErrNotFound", err)
	}
	one, err := r.Save(t.Context(), "other", "a", "", other{"a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Save(t.Context(), "other", "a", "", other{"b"}); !errors.Is(err, registry.ErrExists) {
		t.Errorf("create again: %v", err)
	}
	two, err := r.Save(t.Context(), "other", "a", one, other{"b"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Save(t.Context(), "other", "a", one, other{"c"}); !errors.Is(err, registry.ErrConflict) {
		t.Errorf("save on an old version: %v", err)
	}
	if version, err := r.Load(t.Context(), "other", "a", &got); err != nil || version != two || got.Holder != "b" {
		t.Errorf("%+v at %s, %v", got, version, err)
	}
	var wrong struct{ Another int }
	if _, err := r.Load(t.Context(), "other", "a", &wrong); err == nil {
		t.Error("unknown fields were dropped")
	}
	if err := r.Drop(t.Context(), "other", "a", one); !errors.Is(err, registry.ErrConflict) {
		t.Errorf("drop an old version: %v", err)
	}
	for _, kind := range []string{"nodes", "token"} {
		if _, err := r.Save(t.Context(), kind, "x", "", other{}); err == nil {
			t.Errorf("kind %s was written by Save", kind)
		}
		if _, err := r.Load(t.Context(), kind, "x", &got); err == nil || errors.Is(err, registry.ErrNotFound) {
			t.Errorf("kind %s was read by Load: %v", kind, err)
		}
		if err := r.Drop(t.Context(), kind, "x", ""); err == nil || errors.Is(err, registry.ErrNotFound) {
			t.Errorf("kind %s was deleted by Drop: %v", kind, err)
		}
	}
}

func TestWatchNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := begun(t, registrytest.NewMemory(), time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		seen, done := 0, make(chan error)
		go func() { done <- r.Watch(ctx, func() { seen++ }) }()
		synctest.Wait()
		if _, _, err := r.CreateToken(t.Context(), registry.TokenSpec{Pool: "worker"}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.UpdateNode(t.Context(), "dev-main-0", func(n *admission.Node) error { n.Removing = true; return nil }); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || seen != 2 {
			t.Errorf("got %d calls, error %v, want one at the start and one after the change", seen, err)
		}
	})
}

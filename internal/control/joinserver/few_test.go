// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"crypto/x509"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/rpc"
	"github.com/slipway-project/slipway/internal/testkit"
)

// A stolen node cannot fill a control plane with streams; those of others go on, and its own begin again when the old ones end.
func TestStreamsOfOneNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	m, other := worker(w), controlPlane(w)
	m.join(t)
	other.join(t)
	greeted := func() *syncTalk {
		k := m.sync(t).greeted()
		if _, err := k.stream.Recv(); err != nil { // its roster
			t.Fatal(err)
		}
		return k
	}
	first := greeted()
	for range 7 {
		greeted()
	}
	if err := m.sync(t).greeted().end(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the ninth stream: %v", err)
	}
	entries := w.audit()
	if last := entries[len(entries)-1]; last.Reason != joinserver.TooMuch || last.Node != "dev-worker-0" {
		t.Errorf("audit: %s", last)
	}
	stays := other.sync(t)
	stays.sendHello(w.id, "dev-main-1")
	if _, err := stays.stream.Recv(); err != nil {
		t.Errorf("another node's stream: %v", err)
	}
	first.send(nil) // refused, and so over
	_ = first.end()
	testkit.Eventually(t, "room for a new one", func() bool {
		k := m.sync(t).greeted()
		_, err := k.stream.Recv()
		return err == nil
	})
}

// Nor can it have certificates signed without an end.
func TestRenewalsOfOneNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	m := worker(w)
	m.join(t)
	k := m.sync(t).greeted()
	request := map[string][]byte{"kubelet": csr(t, x509.CertificateRequest{}, certtest.Key(t))}
	for range 100 {
		k.sendKeys(request)
	}
	if err := k.end(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("100 renewals at once: %v", err)
	}
	if err := m.sync(t).greeted().sendKeys(request).end(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more on a new stream: %v", err)
	}
	signed := 0
	for _, e := range w.audit() {
		if e.Reason == joinserver.Certified {
			signed++
		}
	}
	if signed < 16 || signed > 30 {
		t.Errorf("%d certificates were signed", signed)
	}
}

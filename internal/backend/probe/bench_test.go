// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// Asking a running server over TLS is what happens at every 20 to 50 ms of a start.
func BenchmarkAskHTTPS(b *testing.B) {
	server := serve(b, httptest.NewTLSServer)
	ca := filepath.Join(b.TempDir(), "ca.crt")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, certificate, 0o600); err != nil {
		b.Fatal(err)
	}
	p := New()
	defer p.Close()
	for b.Loop() {
		if err := p.Ask(b.Context(), plan.Probe{Kind: plan.ProbeHTTP, URL: server.URL + "/ok", CA: ca}); err != nil {
			b.Fatal(err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package pin_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"math/big"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/core/pin"
)

const some = "sha256:5cd252fb0ce8932436faf8ccd1040981b89ee4ad6b9fe9e2a2b7e71aacb27cd3"

func TestOfKey(t *testing.T) {
	t.Parallel()
	one, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), append(make([]byte, 31), 1))
	if err != nil {
		t.Fatal(err)
	}
	got, err := pin.OfKey(one.Public())
	if err != nil || got != some {
		t.Errorf("got %s, %v, want %s", got, err, some)
	}
	if id := got.ClusterID(); id != "5cd252fb0ce8932436faf8ccd1040981" {
		t.Errorf("got cluster id %s, want the first half of the digits", id)
	}
	if got, err := pin.OfKey(big.NewInt(1)); err == nil || got != "" {
		t.Errorf("a number is not a key: got %q, %v, want an error", got, err)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	if got, err := pin.Parse(some); err != nil || got != some {
		t.Errorf("got %s, %v, want %s", got, err, some)
	}
	for _, bad := range []string{"", "sha256:", some[7:], some[:70], some + "0", some + "\n", strings.ToUpper(some), "md5:" + some[7:], some[:70] + "g"} {
		if got, err := pin.Parse(bad); err == nil || got != "" || pin.Pin(bad).ClusterID() != "" {
			t.Errorf("%q: got %q, %v, want an error", bad, got, err)
		}
	}
}

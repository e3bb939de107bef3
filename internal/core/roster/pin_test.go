// SPDX-License-Identifier: Apache-2.0

package roster_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"math/big"
	"testing"

	"github.com/slipway-project/slipway/internal/core/roster"
)

func TestPinOf(t *testing.T) {
	t.Parallel()
	one, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), append(make([]byte, 31), 1))
	if err != nil {
		t.Fatal(err)
	}
	const want = "sha256:5cd252fb0ce8932436faf8ccd1040981b89ee4ad6b9fe9e2a2b7e71aacb27cd3"
	if got, err := roster.PinOf(one.Public()); err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	if got, err := roster.PinOf(big.NewInt(1)); err == nil || got != "" {
		t.Errorf("what is no key has pin %q, %v", got, err)
	}
}

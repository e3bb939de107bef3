// SPDX-License-Identifier: Apache-2.0

package key_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/attest/key"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
)

func TestVerify(t *testing.T) {
	t.Parallel()
	claim := attest.Claim{Key: pin.Pin("sha256:" + strings.Repeat("a", 64)), Evidence: []byte("slipway.aaaaaaaa.whatever")}
	if got, err := (key.Verifier{}).Verify(t.Context(), claim, nil); err != nil || got != (admission.Evidence{}) {
		t.Errorf("a key proves %+v, %v", got, err)
	}
	for _, bad := range []string{"", "sha256:", strings.ToUpper(string(claim.Key)), string(claim.Key) + "\n"} {
		claim.Key = pin.Pin(bad)
		var no *admission.Refusal
		if _, err := (key.Verifier{}).Verify(t.Context(), claim, nil); !errors.As(err, &no) || no.Reason != admission.BadKey {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

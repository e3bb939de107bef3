// SPDX-License-Identifier: Apache-2.0

package handshake_test

import (
	"bytes"
	"testing"

	"github.com/slipway-project/slipway/internal/core/handshake"
	"github.com/slipway-project/slipway/internal/core/pin"
)

func transcript() handshake.Transcript {
	return handshake.Transcript{Exporter: bytes.Repeat([]byte{1}, 32), Nonce: bytes.Repeat([]byte{2}, 32), Hello: []byte("hello")}
}

// A digest that omits one of the three parts would let a proof be used on another connection.
func TestDigestCoversEverything(t *testing.T) {
	t.Parallel()
	first := transcript().Digest()
	if transcript().Digest() != first {
		t.Fatal("the same transcript gives different digests")
	}
	for name, change := range map[string]func(*handshake.Transcript){
		"exporter": func(tr *handshake.Transcript) { tr.Exporter[31] ^= 1 },
		"nonce":    func(tr *handshake.Transcript) { tr.Nonce[0] ^= 1 },
		"hello":    func(tr *handshake.Transcript) { tr.Hello = []byte("hellp") },
		"no hello": func(tr *handshake.Transcript) { tr.Hello = nil },
		"swapped":  func(tr *handshake.Transcript) { tr.Nonce, tr.Exporter = tr.Exporter, tr.Nonce },
	} {
		tr := transcript()
		change(&tr)
		if tr.Digest() == first {
			t.Errorf("%s changed: want another digest", name)
		}
	}
}

func TestSealInfoIsUnambiguous(t *testing.T) {
	t.Parallel()
	seen := map[string][3]string{}
	for _, parts := range [][3]string{
		{"c", "n", "k"}, {"cn", "", "k"}, {"c", "nk", ""}, {"", "cn", "k"}, {"c", "1:n", "k"}, {"c1:n", "", "k"}, {"", "", ""}, {"c", "n", "l"},
	} {
		info := string(handshake.SealInfo(parts[0], parts[1], pin.Pin(parts[2])))
		if other, twice := seen[info]; twice {
			t.Errorf("%q and %q give the same bytes, want different ones", parts, other)
		}
		seen[info] = parts
	}
}

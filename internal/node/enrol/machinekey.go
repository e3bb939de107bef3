// SPDX-License-Identifier: Apache-2.0

package enrol

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/durable"
)

// MachineKey reads the machine's key, which is the machine's identity, and creates it if there is none. It never replaces one: a
// damaged key is an error, since a new one would make this another machine. If the machine belongs to a cluster (committed) and
// its key is gone, the loss is recorded first (see [LostKey]): the cluster does not know the new key.
func MachineKey(path string, committed bool) (key *ecdsa.PrivateKey, id pin.Pin, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if committed {
			err = durable.WriteFile(LostKey(path), 0o600, []byte("the key was gone\n"))
		}
		if !committed || err == nil {
			text, err = newMachineKey(path)
		}
		if err != nil {
			return nil, "", fmt.Errorf("create the machine's key: %w", err)
		}
	}
	if err != nil {
		return nil, "", fmt.Errorf("read the machine's key: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, "", fmt.Errorf("read the machine's key: %s is damaged: restore it; without it this is another machine", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(*ecdsa.PrivateKey)
	if err != nil || !ok {
		return nil, "", fmt.Errorf("read the machine's key: %s is not an ECDSA key: restore it; without it this is another machine", path)
	}
	id, err = pin.OfKey(key.Public())
	return key, id, err
}

func newMachineKey(path string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	return text, durable.WriteFile(path, 0o600, text)
}

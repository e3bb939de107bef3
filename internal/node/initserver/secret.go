// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/slipway-project/slipway/internal/durable"
)

// secretFile is what the machine knows of the secret.
type secretFile struct {
	Hash string `json:"hash"` // SHA-256, hex
}

const secretBytes = 20

// NewSecret makes a one-time secret for a caller and the content of the file by which the machine recognises it. The secret has
// 160 random bits, so a plain SHA-256 keeps it: a slow hash protects what people choose, and would only cost the machine time.
func NewSecret() (secret string, file []byte) {
	raw := make([]byte, secretBytes)
	_, _ = rand.Read(raw) // never fails: the program ends instead
	secret = strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(raw))
	return secret, SecretFile(secret)
}

// SecretFile is the content of the file by which a machine recognises a secret.
func SecretFile(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return fmt.Appendf(nil, "{\"hash\": %q}\n", hex.EncodeToString(sum[:]))
}

// readSecret gives the hash. Every error says what to do, and none tells what the file holds: it might be the secret itself.
func readSecret(path string) (hash [sha256.Size]byte, err error) {
	next := "the init service stays away until a new secret's file is put there and the agent is started again"
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return hash, fmt.Errorf("read init secret: there is no %s: %s", path, next)
	}
	if err != nil {
		return hash, fmt.Errorf("read init secret: %w: %s", err, next)
	}
	var f secretFile
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&f); err != nil || strict.More() {
		return hash, fmt.Errorf("read init secret: %s is not {\"hash\": …}: %s", path, next)
	}
	sum, err := hex.DecodeString(f.Hash)
	if err != nil || len(sum) != len(hash) || bytes.Equal(sum, make([]byte, len(hash))) {
		return hash, fmt.Errorf("read init secret: the hash in %s is no SHA-256 in hex: %s", path, next)
	}
	empty := sha256.Sum256(nil)
	if bytes.Equal(sum, empty[:]) {
		return hash, fmt.Errorf("read init secret: %s holds the hash of an empty secret: %s", path, next)
	}
	copy(hash[:], sum)
	return hash, nil
}

// Forget removes the secret and the answer from the disk. It is for a committed machine: at the agent's start, or when nobody may
// ask any more. Files that are gone already are no error.
func Forget(secretFile, requestFile string) error {
	for _, path := range []string{secretFile, requestFile, requestFile + ".prev"} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the init secret and its answer: %w", err)
		}
	}
	for _, path := range []string{secretFile, requestFile} {
		if err := durable.SyncDir(filepath.Dir(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the init secret and its answer: %w", err)
		}
	}
	return nil
}

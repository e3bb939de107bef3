// SPDX-License-Identifier: Apache-2.0

package files

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// Fingerprint identifies what the machine holds of an item now: its content, not its path or mode. It changes exactly when a
// process that read the item at its start would read something else. What does not exist has a fingerprint too.
func (h *Host) Fingerprint(item plan.Item) (string, error) { return Fingerprint(item) }

// Fingerprint is the Host's, for who has none.
func Fingerprint(item plan.Item) (string, error) {
	switch it := item.(type) {
	case plan.File:
		return sumFiles(it.Path)
	case plan.Kubeconfig:
		return sumFiles(it.Path)
	case plan.StaticPod:
		return sumFiles(it.Path)
	case plan.Cert:
		return sumFiles(it.Want.CertPath, it.Want.KeyPath)
	case plan.Artifact:
		target, err := os.Readlink(it.Path)
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		return filepath.Base(target), err
	case plan.Dir, plan.Mount, plan.Precondition: // a process does not read these at its start
		return "", nil
	}
	return "", fmt.Errorf("fingerprint of %s: not a kind of file", plan.RefOf(item))
}

func sumFiles(paths ...string) (string, error) {
	sum := sha256.New()
	for _, path := range paths {
		if path == "" {
			continue
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(sum, "%s is absent\n", path)
			continue
		}
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n", path, len(data))
		sum.Write(data)
	}
	return hex.EncodeToString(sum.Sum(nil))[:32], nil
}

// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
)

// Digest reads r to its end, or until ctx ends, and returns "sha256:" with 64 hex digits, and how many bytes there were.
func Digest(ctx context.Context, r io.Reader) (digest string, size int64, err error) {
	sum, buf := sha256.New(), make([]byte, 1<<20)
	for {
		if err := ctx.Err(); err != nil {
			return "", 0, err
		}
		n, err := r.Read(buf)
		sum.Write(buf[:n])
		size += int64(n)
		if errors.Is(err, io.EOF) {
			return "sha256:" + hex.EncodeToString(sum.Sum(nil)), size, nil
		}
		if err != nil {
			return "", 0, err
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package artifact makes and keeps the files that nodes run: a
// content-addressed store on disk, and the bundle of a release that is built
// into it from source, or imported from another machine.
//
// It never trusts a file for its name: a blob's hash is checked when it is
// taken out. It never fetches an image or a binary from a registry, and never
// decides which versions belong together; the catalogue does. Nothing here is
// secret.
//
// Read [Store] and [Bundle] first.
//
//	store, err := artifact.Open("/var/lib/slipway/store")
//	bundle, err := artifact.Build(ctx, artifact.Options{Store: store, Release: release})
//	err = store.Take(ctx, bundle.Binaries["kube"].Digest, "/opt/slipway/bin/kube", 0o755)
//
// On disk:
//
//	blobs/sha256/<hex>   the files, 0755
//	records/<key>        build key → blobs; checksummed
//	lock                 held while something is built or imported
//	tmp/                 unfinished writes; anything found here is rubbish
//
// There is no index that could be damaged as a whole: each record stands alone
// and says only what one build gave. A damaged record is a thing not known, so
// it is built again and, builds being reproducible, finds its blobs in place.
package artifact

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Digest is "sha256:" and 64 lower-case hex digits, the form plans carry too.
type Digest string

// ParseDigest checks the form; everything that comes from outside goes through
// it before it becomes part of a path.
func ParseDigest(s string) (Digest, error) {
	h, ok := strings.CutPrefix(s, "sha256:")
	if _, err := hex.DecodeString(h); !ok || err != nil || len(h) != 64 || h != strings.ToLower(h) {
		return "", fmt.Errorf("parse digest %q: want sha256: and 64 hex digits", s)
	}
	return Digest(s), nil
}

func (d Digest) String() string { return string(d) }

// Hex is the digest without its "sha256:".
func (d Digest) Hex() string { return strings.TrimPrefix(string(d), "sha256:") }

// Blob is what identifies a file in the store. The size is for cheap checks.
type Blob struct {
	Digest Digest `json:"digest"`
	Size   int64  `json:"size"`
}

// Bundle is everything one release needs, by name.
type Bundle struct {
	Kubernetes string          `json:"kubernetes"` // release it belongs to: "1.36.4"
	Arch       string          `json:"arch"`
	Binaries   map[string]Blob `json:"binaries"` // by file name: "kube", not its links
	Images     map[string]Blob `json:"images"`   // by image reference; each a tarball that `ctr images import` takes
}

// ErrDamaged marks a blob or record whose content is not what its name says.
// Build makes it again.
var ErrDamaged = errors.New("damaged")

// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"path"
	"strings"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// prepare writes the commands that bring one thing.
func (r *rendering) prepare(w *writer, e plan.Entry) error {
	switch it := e.Item.(type) {
	case plan.Dir:
		w.set("ExecStartPre", fmt.Sprintf("/bin/mkdir -p -m %04o %s", it.Mode, dollar(it.Path)))
	case plan.File:
		if len(it.Fill) == 0 {
			w.fetch(it.Path, it.Mode, digest(it.Content))
		}
	case plan.StaticPod:
		w.fetch(it.Path, 0o600, digest(it.Manifest))
	case plan.Artifact:
		hex, ok := strings.CutPrefix(it.Digest, "sha256:")
		if !ok || len(hex) != 64 {
			return fmt.Errorf("render %s: its digest is not known: build the components first, slipway bundle build", e.Ref)
		}
		w.fetch(it.Path, 0o755, hex)
	default:
	}
	return nil
}

// fetch brings a file that is not there as it should be. It comes beside its place, is checked, then made executable, then moved:
// what runs now is never taken away first, and a machine that has the file needs no network.
func (w *writer) fetch(at string, mode uint32, hex string) {
	tmp := path.Dir(at) + "/." + path.Base(at) + ".new"
	script := strings.Join([]string{
		"f=" + single(at), "t=" + single(tmp), "s=" + hex,
		`echo "$s  $f" | sha256sum -c --status 2>/dev/null && exit 0`,
		`mkdir -p ` + single(path.Dir(at)),
		`curl -fsSL --retry 3 -o "$t" "${SLIPWAY_STORE:?write SLIPWAY_STORE=https://… into ` + storeFile + `}/sha256/$s"`,
		`echo "$s  $t" | sha256sum -c --status`,
		fmt.Sprintf(`chmod %04o "$t"`, mode), `mv -f "$t" "$f"`,
	}, "; ")
	w.set("ExecStartPre", "/bin/sh -ec "+dollar(script))
}

// dollar is a word in which dollar signs are meant for whoever gets it, not for systemd.
func dollar(s string) string { return strings.ReplaceAll(quoted(s), "$", "$$") }

// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// Manifest is a manifest as it is written on the node.
type Manifest struct {
	Text string
	UID  string // UID of the pod; empty for the user's pods
}

// NewManifest fills in the placeholders of the plan's manifest and adds a header that names Slipway as the
// author. The same manifest with the same inputs is the same pod; any change makes a different one.
func NewManifest(p plan.StaticPod, inputs []string) Manifest {
	sum := sha256.New()
	for _, s := range append([]string{p.Name, p.Manifest}, inputs...) {
		sum.Write([]byte(s))
		sum.Write([]byte{0})
	}
	hash := hex.EncodeToString(sum.Sum(nil))
	m := Manifest{}
	body := p.Manifest
	if p.Component {
		m.UID = hash[:32]
		body = strings.ReplaceAll(strings.ReplaceAll(body, plan.PodUID, m.UID), plan.PodInputs, hash)
	}
	m.Text = head(body) + body
	return m
}

const header = "# Written by slipway, which overwrites what is changed here. sha256:"

// head returns the first line of a manifest with the given body.
func head(body string) string {
	sum := sha256.Sum256([]byte(body))
	return header + hex.EncodeToString(sum[:]) + "\n"
}

// UIDOf returns the pod UID in a manifest, or "".
func UIDOf(text string) string {
	for line := range strings.Lines(text) {
		if uid, ok := strings.CutPrefix(strings.TrimSpace(line), "uid: "); ok {
			return strings.Trim(uid, `"'`)
		}
	}
	return ""
}

// WrittenBySlipway reports whether Slipway has written a manifest, and whether it is unchanged since.
func WrittenBySlipway(text string) (written, unchanged bool) {
	_, body, _ := strings.Cut(text, "\n")
	return strings.HasPrefix(text, header), text == head(body)+body
}

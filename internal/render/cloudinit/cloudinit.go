// SPDX-License-Identifier: Apache-2.0

// Package cloudinit renders a machine's user data as a cloud-config. It is pure.
//
// Read [Render]; package userdata defines the content.
package cloudinit

import (
	"fmt"
	"strings"

	"github.com/slipway-project/slipway/internal/core/userdata"
)

// Render returns a cloud-config of at most userdata.Limit bytes.
func Render(d userdata.Data) ([]byte, error) {
	files, err := d.Files()
	if err != nil {
		return nil, fmt.Errorf("write cloud-config: %w", err)
	}
	var b strings.Builder
	b.WriteString("#cloud-config\n")
	for _, line := range d.Heading() {
		b.WriteString("# " + line + "\n")
	}
	b.WriteString("write_files:\n")
	for _, f := range files {
		fmt.Fprintf(&b, "- path: %s\n  permissions: '0%o'\n  content: |\n", f.Path, f.Mode)
		for line := range strings.Lines(f.Text) {
			if line == "\n" {
				b.WriteString(line)
				continue
			}
			b.WriteString("    " + line)
		}
	}
	b.WriteString("runcmd:\n- [systemctl, daemon-reload]\n- [systemctl, enable, --now, --no-block, " + userdata.JoinUnit + "]\n")
	return userdata.Fit([]byte(b.String()))
}

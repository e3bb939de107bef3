// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

func swapIsOff(_ context.Context, h Host, _ []string) error {
	if on := h.swaps(); len(on) > 0 && !h.Shared {
		return fmt.Errorf("swap is on: %s", strings.Join(on, ", "))
	}
	return nil
}

// switchSwapOff lasts until the next boot; then it is asked again.
func switchSwapOff(ctx context.Context, h Host, _ []string) error {
	if h.Shared {
		return nil
	}
	for _, device := range h.swaps() {
		if _, err := h.run(ctx, "/usr/bin/env", "swapoff", device); err != nil {
			return fmt.Errorf("switch swap off: %w; there may be too little memory for what is in it", err)
		}
		h.say("swap on %s switched off", device)
	}
	return nil
}

func swapIsOn(_ context.Context, h Host, _ []string) error {
	if len(h.swaps()) == 0 {
		return errors.New("there is no swap: add some, or change spec.os.swap")
	}
	return nil
}

// swaps reads /proc/swaps, whose first line is a heading.
func (h Host) swaps() []string {
	text, _ := h.read("/proc/swaps")
	var devices []string
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if f := strings.Fields(line); i > 0 && len(f) > 0 {
			devices = append(devices, strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(f[0]))
		}
	}
	return devices
}

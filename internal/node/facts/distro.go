// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"os"
	"path/filepath"

	"github.com/slipway-project/slipway/internal/core/distro"
)

// PackageManager returns the package manager of the distribution below a root directory, by its
// etc/os-release or usr/lib/os-release. It returns the zero Manager if neither can be read or the
// distribution is unknown.
func PackageManager(root string) distro.Manager {
	text, err := os.ReadFile(filepath.Join(root, "etc/os-release"))
	if err != nil {
		text, _ = os.ReadFile(filepath.Join(root, "usr/lib/os-release"))
	}
	return distro.FromOSRelease(string(text))
}

// SharedKernel reports whether this process runs in a container, as the agents of local machines do: kernel
// modules, swap and most sysctls then belong to the host. It reports true if it cannot tell.
func SharedKernel() bool { return sharedKernel("/proc/self/ns/pid") }

// sharedKernel compares with the inode of the first PID namespace, which is part of the kernel's interface
// (PROC_PID_INIT_INO).
func sharedKernel(namespace string) bool {
	const first = "pid:[4026531836]"
	link, err := os.Readlink(namespace)
	return err != nil || link != first
}

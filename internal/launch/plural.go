// SPDX-License-Identifier: Apache-2.0

package launch

import "fmt"

// Plural counts things for people: "1 machine", "3 machines".
func Plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"io"
)

const maxSpec = 1 << 20

// readBounded reads one byte more than a spec may have, so that the decoder can refuse it by its size.
func readBounded(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxSpec+1))
	if err != nil {
		return nil, fmt.Errorf("read spec: %w", err)
	}
	return text, nil
}

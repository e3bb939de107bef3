// SPDX-License-Identifier: Apache-2.0

package launch

import "context"

func (u *up) preflight(context.Context) error { return nil }

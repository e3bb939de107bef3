// SPDX-License-Identifier: Apache-2.0

package pki

// ClockError says that nothing is signed because a clock is wrong: what was signed at such a time would be good for nobody.
type ClockError struct{ Text string }

func (e *ClockError) Error() string { return e.Text }

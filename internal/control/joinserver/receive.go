// SPDX-License-Identifier: Apache-2.0

package joinserver

import "context"

// received is a message, or the end of the stream.
type received[M any] struct {
	message M
	err     error
}

// receive reads a stream beside its owner, one message ahead of it. It ends with the stream, or with the context.
func receive[M any](ctx context.Context, recv func() (M, error)) <-chan received[M] {
	inbox := make(chan received[M])
	go func() {
		for {
			m, err := recv()
			select {
			case inbox <- received[M]{m, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return inbox
}

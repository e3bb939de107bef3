// SPDX-License-Identifier: Apache-2.0

package joinserver

import "context"

// inbox is a stream that is read beside its owner, one message ahead of it.
type inbox[M any] struct {
	messages chan M
	end      chan error // has the one reason why there are no more; always, soon after the context's end
}

// receive reads until the stream or the context ends.
func receive[M any](ctx context.Context, recv func() (M, error)) inbox[M] {
	in := inbox[M]{messages: make(chan M), end: make(chan error, 1)}
	go func() {
		for {
			m, err := recv()
			if err != nil {
				in.end <- &lost{err}
				return
			}
			select {
			case in.messages <- m:
			case <-ctx.Done():
				in.end <- ctx.Err()
				return
			}
		}
	}()
	return in
}

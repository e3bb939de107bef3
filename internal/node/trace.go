// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"

	"github.com/slipway-project/slipway/internal/durable"
)

// keepTrace writes the spans of this run once everything is ready, if the run changed something: the trace of a start
// outlives the agent that started.
func (a *Agent) keepTrace(ctx context.Context) error {
	changes := a.board.Subscribe()
	defer changes.End()
	for {
		all, steps := a.board.All()
		if allReady(all) {
			if steps > 0 {
				a.writeTrace()
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changes.C:
		}
	}
}

func (a *Agent) writeTrace() {
	spans, err := json.Marshal(a.board.Spans())
	if err == nil {
		err = durable.WriteFile(a.cfg.TraceFile, 0o600, spans)
	}
	if err != nil {
		a.cfg.Log.Warn("keep trace", "error", err)
	}
}

// trace is the spans of the run under way, or of the last one that changed something.
func (a *Agent) trace() ([]byte, error) {
	if _, steps := a.board.All(); steps == 0 {
		kept, err := os.ReadFile(a.cfg.TraceFile)
		if !errors.Is(err, fs.ErrNotExist) {
			return kept, err
		}
	}
	return json.Marshal(a.board.Spans())
}

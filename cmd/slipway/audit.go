// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/rpc"
)

// audit writes one line for each decision about a machine. Nothing of it is lost silently: what cannot be written is logged.
type audit struct {
	path string
	log  *slog.Logger

	mu sync.Mutex // one line at a time
}

const auditMost = 16 << 20 // bytes; then the file becomes FILE.1 and a new one is begun

// decision writes what was granted twice: strangers who are refused can fill and turn over the one file, not the other.
func (a *audit) decision(e joinserver.Entry) {
	a.write(a.path, e.String())
	switch e.Reason {
	case joinserver.Granted, joinserver.Certified, joinserver.Permitted, joinserver.Promoted:
		a.write(strings.TrimSuffix(a.path, ".log")+"-granted.log", e.String())
	default:
	}
}

func (a *audit) refused(r rpc.Refused) {
	a.write(a.path, fmt.Sprintf("%s rpc id=%s peer=%s key=%s method=%q code=%s reason=%q suppressed=%d",
		r.At.UTC().Format(time.RFC3339Nano), r.ID, r.Peer.Addr, r.Peer.Key, r.Method, r.Code, r.Reason, r.Suppressed))
}

func (a *audit) write(path, line string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if info, err := os.Stat(path); err == nil && info.Size() > auditMost {
		if err := os.Rename(path, path+".1"); err != nil {
			a.log.Error("audit not rotated", "error", err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err == nil {
		_, err = f.WriteString(line + "\n")
		if closed := f.Close(); err == nil {
			err = closed
		}
	}
	if err != nil {
		a.log.Error("audit not written", "error", err, "entry", line)
	}
}

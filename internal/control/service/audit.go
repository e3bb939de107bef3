// SPDX-License-Identifier: Apache-2.0

package service

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

// auditLog writes one line for each decision about a machine. A line that cannot be written is logged instead.
type auditLog struct {
	path string
	log  *slog.Logger

	mu sync.Mutex // one line at a time
}

const maxAudit = 16 << 20 // bytes; then the file is renamed to FILE.1 and a new one started

// decision writes grants to a second file as well: unauthenticated clients can fill and rotate the first one with refusals, but
// not the second.
func (a *auditLog) decision(e joinserver.Entry) {
	a.write(a.path, e.String())
	switch e.Reason {
	case joinserver.Granted, joinserver.Certified, joinserver.Permitted, joinserver.Promoted:
		a.write(strings.TrimSuffix(a.path, ".log")+"-granted.log", e.String())
	default:
	}
}

func (a *auditLog) refused(r rpc.Refused) {
	a.write(a.path, fmt.Sprintf("%s rpc id=%s peer=%s key=%s method=%q code=%s reason=%q suppressed=%d",
		r.At.UTC().Format(time.RFC3339Nano), r.ID, r.Peer.Addr, r.Peer.Key, r.Method, r.Code, r.Reason, r.Suppressed))
}

func (a *auditLog) write(path, line string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if info, err := os.Stat(path); err == nil && info.Size() > maxAudit {
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

// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/pin"
)

// Entry is one line of the audit: a decision. Its texts are printable ASCII and short, whatever a stranger has sent, so that an
// entry is one line wherever it is written to. It never holds a token or key material.
type Entry struct {
	At     time.Time
	ID     string // of the stream; a refused machine was told it
	Call   string // "join" or "sync"
	Peer   netip.AddrPort
	Key    pin.Pin // pin of the machine's key
	Node   string  // the record's name; before a record is known, the name that was claimed
	Reason Reason
	Detail string // for people
}

func (e Entry) String() string {
	return fmt.Sprintf("%s %s id=%s peer=%s key=%s node=%q reason=%s detail=%q", e.At.UTC().Format(time.RFC3339Nano), e.Call, e.ID, e.Peer, e.Key, e.Node, e.Reason, e.Detail)
}

// Most of what a stranger sent that the audit keeps.
const (
	maxAuditName   = 80
	maxAuditDetail = 300
)

// printable makes a text harmless for terminals and for readers of lines.
func printable(text string, most int) string {
	cut := len(text) > most
	if cut {
		text = text[:most]
	}
	quoted := strconv.QuoteToASCII(text)
	quoted = strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
	if cut {
		quoted += "…"
	}
	return quoted
}

// newID is what a refused machine and the audit have in common.
func newID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// ports compares the listening sockets of the machine with the table in docs/ports.md, in both directions.
func ports(c *kit.Cluster) {
	t := c.T
	if diff := cmp.Diff(documented(t), listening(t, c)); diff != "" {
		t.Errorf("listening sockets (- only in docs/ports.md, + only in the machine):\n%s", diff)
	}
}

// documented reads rows such as "| tcp | 127.0.0.1 | 2379 | etcd | … |".
func documented(t testing.TB) []string {
	text, err := os.ReadFile(filepath.Join(kit.Checkout(), "docs", "ports.md"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 6 {
			continue
		}
		for i := range cells {
			cells[i] = strings.Trim(cells[i], " `\n")
		}
		if cells[1] == "tcp" || cells[1] == "udp" {
			rows = append(rows, strings.Join(cells[1:5], " "))
		}
	}
	slices.Sort(rows)
	return rows
}

// listening lists the sockets in the machine's network as in the table: protocol, address, port, program.
func listening(t testing.TB, c *kit.Cluster) []string {
	programs := c.Processes()
	first := fmt.Sprintf("/proc/%d/net/", slices.MinFunc(programs, func(a, b kit.Process) int { return a.MachinePID - b.MachinePID }).PID)
	owner := owners(programs)
	var rows []string
	for file, listen := range map[string]string{"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"} {
		text, err := os.ReadFile(first + file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != listen {
				continue
			}
			at := address(t, f[1])
			port, where := strconv.Itoa(int(at.Port())), at.Addr().String()
			if at.Port() >= 32768 {
				port = "any"
			}
			where = strings.ReplaceAll(where, "10.89.0.10", "node")
			rows = append(rows, fmt.Sprintf("%s %s %s %s", file[:3], where, port, owner[f[9]]))
		}
	}
	slices.Sort(rows)
	return slices.Compact(rows)
}

// address parses "0100007F:1F90": 32-bit words in the machine's byte order, then the port.
func address(t testing.TB, text string) netip.AddrPort {
	ip, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(ip)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	a, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(a.Unmap(), uint16(n))
}

// owners maps inodes of sockets to the programs that have them open.
func owners(programs []kit.Process) map[string]string {
	found := map[string]string{}
	for _, p := range programs {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.PID))
		for _, link := range links {
			if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, "socket:[") {
				found[strings.Trim(to[len("socket:"):], "[]")] = filepath.Base(p.Args[0])
			}
		}
	}
	return found
}

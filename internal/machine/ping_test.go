// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ping sends echo requests that may not be fragmented, of that size with all their headers, until one is answered or time is up.
func ping(to, size, wait string) error {
	patience, err := time.ParseDuration(wait)
	if err != nil {
		return err
	}
	for begin := time.Now(); ; {
		if err = pingOnce(to, size); err == nil || time.Since(begin) > patience {
			return err
		}
	}
}

func pingOnce(to, size string) error {
	addr, err := netip.ParseAddr(to)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(int64(200 * time.Millisecond))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO); err != nil {
		return err
	}
	request := make([]byte, n-20) // without the IP header
	request[0] = 8
	binary.BigEndian.PutUint16(request[4:], uint16(os.Getpid()))
	binary.BigEndian.PutUint16(request[2:], checksum(request))
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrInet4{Addr: addr.As4()}); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	packet := make([]byte, 64<<10)
	for {
		got, from, err := unix.Recvfrom(fd, packet, 0)
		if err != nil {
			return fmt.Errorf("no answer: %w", err)
		}
		peer, ok := from.(*unix.SockaddrInet4)
		if ok && peer.Addr == addr.As4() && got == n && packet[20] == 0 && bytes.Equal(packet[24:n], request[4:]) {
			return nil
		}
	}
}

func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// reaches pings from inside one machine another one. What is expected is given time: after a cut is healed, a machine may ask
// for another's hardware address only once a second.
func reaches(t *testing.T, l *Local, from, to Spec, size int, expected bool) bool {
	t.Helper()
	wait := "150ms"
	if expected {
		wait = "5s"
	}
	other, err := to.complete()
	must(t, err)
	var out bytes.Buffer
	code, err := l.Exec(t.Context(), from.Cluster, from.Name, Command{
		Args: []string{BinDir + "/slipway", "ping", other.Address.String(), strconv.Itoa(size), wait}, Stdout: &out, Stderr: &out,
	})
	if err != nil || code > 1 {
		t.Fatalf("ping %s: exit %d, %v: %s", to.Name, code, err, out.String())
	}
	return code == 0
}

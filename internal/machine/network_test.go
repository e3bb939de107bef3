// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

func several(cluster string, n int) []Spec {
	var specs []Spec
	for i := range n {
		specs = append(specs, Spec{Cluster: cluster, Name: fmt.Sprintf("%s-%d", cluster, i), Index: i})
	}
	return specs
}

// ensureAll ensures all machines concurrently.
func ensureAll(t *testing.T, l *Local, specs []Spec) {
	t.Helper()
	var group errgroup.Group
	for _, s := range specs {
		group.Go(func() error {
			_, err := l.Ensure(t.Context(), s)
			return err
		})
	}
	must(t, group.Wait())
}

// Five machines are ensured concurrently, several times, while another cluster is created and destroyed. Then
// every machine reaches every other, with packets up to the MTU.
func TestFiveMachinesAtOnce(t *testing.T) {
	l := newLocal(t)
	before := hostState(t, l)
	specs := several("five", 5)
	for round := range 3 {
		var other errgroup.Group
		other.Go(func() error {
			_, err := l.Ensure(t.Context(), Spec{Cluster: "other", Name: "other-0"})
			return errors.Join(err, l.Destroy(t.Context(), "other"))
		})
		ensureAll(t, l, specs)
		must(t, other.Wait())
		for _, s := range specs {
			await(t, l, s, "agent.pid", "")
		}
		if round == 1 {
			for _, s := range specs {
				must(t, l.PowerCut(t.Context(), s.Cluster, s.Name))
			}
		}
		if round == 0 {
			must(t, l.Destroy(t.Context(), "five"))
		}
	}
	for _, from := range specs {
		for _, to := range specs {
			for size, want := range map[int]bool{84: true, linkMTU: true, linkMTU + 1: false} {
				if got := reaches(t, l, from, to, size, want); got != want && from.Name != to.Name {
					t.Errorf("%d bytes from %s to %s: got arrived=%t, want %t", size, from.Name, to.Name, got, want)
				}
			}
		}
	}
	list, err := l.List(t.Context(), "five")
	must(t, err)
	if len(list) != 5 || !list[4].Running || list[4].Address.String() != "10.89.0.14" {
		t.Errorf("list: got %+v", list)
	}
	must(t, l.Destroy(t.Context(), "five"))
	if diff := hostDiff(before, hostState(t, l)); diff != "" {
		t.Errorf("host changed (-want +got):\n%s", diff)
	}
}

// A cut machine reaches no other, also after stops, starts and lost namespaces, until it is healed.
func TestCutAndHeal(t *testing.T) {
	l := newLocal(t)
	specs := several("cut", 3)
	ensureAll(t, l, specs)
	check := func(when string, want string) {
		t.Helper()
		var got []string
		for i, from := range specs {
			for j, to := range specs {
				path := fmt.Sprintf("%d>%d", i, j)
				if i != j && reaches(t, l, from, to, 84, strings.Contains(want, path)) {
					got = append(got, path)
				}
			}
		}
		if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	const all, without0, without01 = "0>1 0>2 1>0 1>2 2>0 2>1", "1>2 2>1", "0>2 1>2 2>0 2>1"
	a, b := specs[0], specs[1]
	check("initially", all)
	must(t, l.Cut(t.Context(), a.Cluster, a.Name))
	check("cut", without0)
	if st := status(t, l, a); !st.Cut || !st.Running {
		t.Errorf("cut: got %+v, want running and cut", st)
	}
	if got := run(t, l, a, "uname", "-n"); got != a.Name+"\n" { // works like a console
		t.Errorf("exec in a cut machine: %q", got)
	}
	must(t, l.PowerCut(t.Context(), a.Cluster, a.Name))
	if change, err := l.Start(t.Context(), a.Cluster, a.Name); err != nil || change != (Change{Started: true}) {
		t.Fatalf("start: %+v, %v", change, err)
	}
	check("cut, after a restart", without0)
	for _, s := range specs {
		must(t, l.PowerCut(t.Context(), s.Cluster, s.Name), unix.Unmount(l.paths(s.Cluster, s.Name).netns(), unix.MNT_DETACH))
	}
	must(t, unix.Unmount(l.switchPin(a.Cluster), unix.MNT_DETACH), l.CutBetween(t.Context(), a.Cluster, b.Name, specs[2].Name))
	ensureAll(t, l, specs) // as after a reboot of the host
	check("cut, and one pair cut, after a reboot", "")
	must(t, l.Heal(t.Context(), a.Cluster, a.Name))
	check("healed", "0>1 0>2 1>0 2>0")
	must(t, l.Heal(t.Context(), a.Cluster, b.Name), l.CutBetween(t.Context(), a.Cluster, b.Name, a.Name))
	check("another pair", without01)
	if diff := cmp.Diff([]string{b.Name}, status(t, l, a).CutFrom); diff != "" {
		t.Errorf("status: %s", diff)
	}
	must(t, l.Heal(t.Context(), a.Cluster, a.Name))
	check("healed from the other end", all)
	if st := status(t, l, b); st.Cut || st.CutFrom != nil {
		t.Errorf("healed: got %+v, want not cut", st)
	}
	if err := l.Cut(t.Context(), a.Cluster, "cut-9"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("cut of a missing machine: got %v, want ErrNotExist", err)
	}
	if err := l.CutBetween(t.Context(), a.Cluster, a.Name, a.Name); err == nil {
		t.Error("cut from itself: got nil, want an error")
	}
}

// Remove removes one machine and keeps the others. The rest of an interrupted removal is not a machine, and
// the next removal deletes it.
func TestRemove(t *testing.T) {
	l := newLocal(t)
	specs := several("rm", 2)
	ensureAll(t, l, specs)
	gone, stays := specs[1], specs[0]
	left := filepath.Join(l.clusterDir("rm"), removedPrefix+gone.Name, "data")
	must(t, os.MkdirAll(left, 0o755), l.Remove(t.Context(), gone.Cluster, gone.Name))
	list, err := l.List(t.Context(), "rm")
	must(t, err)
	if len(list) != 1 || list[0].Name != stays.Name || !list[0].Running {
		t.Errorf("machines after Remove: got %+v", list)
	}
	for _, dir := range []string{filepath.Dir(left), l.paths(gone.Cluster, gone.Name).dir} {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was not removed: %v", dir, err)
		}
	}
	if err := l.Remove(t.Context(), gone.Cluster, gone.Name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("second Remove: got %v, want ErrNotExist", err)
	}
	must(t, os.MkdirAll(left, 0o755))
	if list, err := l.List(t.Context(), "rm"); err != nil || len(list) != 1 {
		t.Errorf("list after an interrupted removal: got %+v, %v", list, err)
	}
}

// Concurrent changes of one machine are serialized, and a machine can be destroyed while others wait to start
// it.
func TestOneAtATime(t *testing.T) {
	l := newLocal(t)
	s := Spec{Cluster: "serial", Name: "serial-0"}
	ensure(t, l, s)
	for range 5 {
		var group errgroup.Group
		for range 3 {
			group.Go(func() error { return l.PowerCut(t.Context(), s.Cluster, s.Name) })
			group.Go(func() error {
				_, err := l.Start(t.Context(), s.Cluster, s.Name)
				return err
			})
			group.Go(func() error {
				return errors.Join(l.Cut(t.Context(), s.Cluster, s.Name), l.Heal(t.Context(), s.Cluster, s.Name))
			})
		}
		must(t, group.Wait())
	}
	var group errgroup.Group
	group.Go(func() error { return l.Destroy(t.Context(), s.Cluster) })
	for range 3 {
		group.Go(func() error {
			if _, err := l.Start(t.Context(), s.Cluster, s.Name); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		})
	}
	must(t, group.Wait())
	if _, err := os.Lstat(l.clusterDir(s.Cluster)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("cluster directory was not removed: %v", err)
	}
}

// Files are written before the first boot and never again.
func TestFiles(t *testing.T) {
	l := newLocal(t)
	s := Spec{Cluster: "files", Name: "files-0", Files: map[string][]byte{"state/init-secret": []byte("one")}}
	for _, bad := range []string{"/etc/passwd", "../x", "a/../b", "store/x", "", "."} {
		other := s
		other.Files = map[string][]byte{bad: nil}
		if _, err := l.Ensure(t.Context(), other); err == nil {
			t.Errorf("file %q was accepted", bad)
		}
	}
	ensure(t, l, s)
	const inside = "/var/lib/slipway/state/init-secret"
	if got := run(t, l, s, "sh", "-c", "cat "+inside+"; stat -c ' %a' "+inside); got != "one 600\n" {
		t.Errorf("file: got %q", got)
	}
	run(t, l, s, "rm", inside)
	s.Files = map[string][]byte{"state/init-secret": []byte("two")}
	must(t, l.PowerCut(t.Context(), s.Cluster, s.Name))
	ensure(t, l, s)
	must(t, l.PowerCut(t.Context(), s.Cluster, s.Name), os.Remove(l.paths(s.Cluster, s.Name).state()), os.Remove(l.paths(s.Cluster, s.Name).state()+".prev"))
	ensure(t, l, s)
	if _, err := os.Stat(filepath.Join(l.DataDir(s.Cluster, s.Name, "slipway"), "state/init-secret")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was written again: %v", err)
	}
	text, err := os.ReadFile(l.paths(s.Cluster, s.Name).state())
	must(t, err)
	if strings.Contains(string(text), "init-secret") {
		t.Errorf("the record contains the files: %s", text)
	}
}

// ping sends echo requests that may not be fragmented, size bytes long including all headers, until one is
// answered or the time limit has passed.
func ping(to, size, wait string) error {
	limit, err := time.ParseDuration(wait)
	if err != nil {
		return err
	}
	for begin := time.Now(); ; {
		if err = pingOnce(to, size); err == nil || time.Since(begin) > limit {
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

// reaches pings one machine from inside another. An expected answer gets more time: after a cut is healed, a
// machine sends an ARP request only once a second.
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

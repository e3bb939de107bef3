// SPDX-License-Identifier: Apache-2.0

package ha_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// udpPayload is the payload of a UDP packet of 1500 bytes.
const udpPayload = 1500 - 20 - 8

// podNetwork connects from each pod to each other: packets of 1500 bytes pass without fragmentation, and no address is translated. It opens
// its own sockets in the pods' network namespaces.
func podNetwork(c *kit.Cluster) {
	type pod struct {
		address netip.Addr
		network string
	}
	pods := map[string]pod{}
	for _, line := range strings.Fields(c.Kubectl("get", "pods", "--selector", "app=web", "--output", `jsonpath={range .items[*]}{.spec.nodeName}={.status.podIP}{"\n"}{end}`)) {
		node, ip, _ := strings.Cut(line, "=")
		address, err := netip.ParseAddr(ip)
		if err != nil {
			c.T.Fatalf("address of pod on %s: %v", node, err)
		}
		pods[node] = pod{address, kit.PodNetwork(webPod(c, node))}
	}
	if len(pods) != mains+workers {
		c.T.Fatalf("pods: got %v, want one on every node", pods)
	}
	for to, server := range pods {
		err := kit.InNetwork(server.network, func() error {
			udp, err := net.ListenPacket("udp4", ":9000")
			if err != nil {
				return err
			}
			c.T.Cleanup(func() { _ = udp.Close() })
			tcp, err := net.Listen("tcp4", ":9000")
			if err != nil {
				return err
			}
			c.T.Cleanup(func() { tcp.Close() })
			go answerPackets(udp)
			go answerStreams(tcp)
			return nil
		})
		if err != nil {
			c.T.Fatalf("listen in the pod of %s: %v", to, err)
		}
	}
	for from, client := range pods {
		for to, server := range pods {
			if from == to {
				continue
			}
			target := netip.AddrPortFrom(server.address, 9000).String()
			err := kit.InNetwork(client.network, func() error {
				return errors.Join(packets(c.T.Context(), client.address, target), stream(c.T.Context(), client.address, target))
			})
			if err != nil {
				c.T.Errorf("pod of %s (%s) to pod of %s (%s): %v", from, client.address, to, server.address, err)
			}
		}
	}
}

// answerPackets answers each packet with its size and source address.
func answerPackets(conn net.PacketConn) {
	packet := make([]byte, 1<<16)
	for {
		n, from, err := conn.ReadFrom(packet)
		if err != nil {
			return // closed
		}
		_, _ = conn.WriteTo(fmt.Appendf(nil, "%d bytes from %s", n, from), from)
	}
}

// answerStreams answers each connection with the number of bytes received and the source address.
func answerStreams(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			defer conn.Close()
			n, _ := io.Copy(io.Discard, conn) // the client checks the number
			fmt.Fprintf(conn, "%d bytes from %s", n, conn.RemoteAddr())
		}()
	}
}

// packets sends a packet of 1500 bytes that may not be fragmented, and one that is too large.
func packets(ctx context.Context, own netip.Addr, target string) error {
	d := net.Dialer{Timeout: 5 * time.Second, Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if ctl := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE) // set DF, ignore the path MTU
		}); ctl != nil {
			return ctl
		}
		return err
	}}
	conn, err := d.DialContext(ctx, "udp4", target)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(make([]byte, udpPayload+1)); !errors.Is(err, unix.EMSGSIZE) {
		return fmt.Errorf("send 1501 bytes: got %v, want EMSGSIZE: the MTU is not 1500", err) //nolint:errorlint // may be nil
	}
	answer := make([]byte, 256)
	for range 3 { // UDP may lose packets
		if _, err = conn.Write(make([]byte, udpPayload)); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		n := 0
		if n, err = conn.Read(answer); err == nil {
			answer = answer[:n]
			break
		}
	}
	if err != nil {
		return fmt.Errorf("send 1500 bytes: %w", err)
	}
	return expect(string(answer), udpPayload, own, conn)
}

// stream sends a mebibyte over TCP.
func stream(ctx context.Context, own netip.Addr, target string) error {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp4", target)
	if err != nil {
		return err
	}
	defer conn.Close()
	const size = 1 << 20
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write(make([]byte, size)); err != nil {
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, 256))
	if err != nil {
		return err
	}
	return expect(string(answer), size, own, conn)
}

func expect(answer string, size int, own netip.Addr, conn net.Conn) error {
	port := netip.MustParseAddrPort(conn.LocalAddr().String()).Port()
	if want := fmt.Sprintf("%d bytes from %s", size, netip.AddrPortFrom(own, port)); answer != want {
		return fmt.Errorf("answer of the server: got %q, want %q", answer, want)
	}
	return nil
}

// services connects to the Service and the API from every pod and every node.
func services(c *kit.Cluster) {
	address := c.Kubectl("get", "service", "web", "--output", "jsonpath={.spec.clusterIP}")
	for _, line := range strings.Fields(c.Kubectl("get", "pods", "--selector", "app=web", "--output", `jsonpath={range .items[*]}{.metadata.name}={.spec.nodeName}{"\n"}{end}`)) {
		pod, node, _ := strings.Cut(line, "=")
		if got := c.Kubectl("exec", pod, "--", "/testpod", "get", "--retry-for", "60s", "http://web.default.svc.cluster.local"); !strings.HasPrefix(got, "web-") {
			c.T.Errorf("Service by name from a pod on %s: got %q, want web-…", node, got)
		}
		conn, err := c.On(node).Dial(c.T.Context(), "tcp4", net.JoinHostPort(address, "80"))
		if err != nil {
			c.T.Errorf("Service by address from node %s: %v", node, err)
			continue
		}
		conn.Close()
		api := c.On(node).APIClient(false, 5*time.Second)
		reply, err := api.Get("https://127.0.0.1:6443/version")
		if err != nil {
			c.T.Errorf("API at 127.0.0.1 of %s: %v", node, err)
			continue
		}
		reply.Body.Close()
	}
}

// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// hostile is the TLS configuration of a client that accepts every server; a test breaks one thing of it.
func hostile(t testing.TB) *tls.Config {
	t.Helper()
	_, cert := identity(t)
	return &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS10,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil },
	}
}

func dialTCP(t testing.TB, addr, from string) net.Conn {
	t.Helper()
	d := net.Dialer{}
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	c, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// dialTLS shakes hands and reads until the server's answer to that is known: TLS 1.3 clients are done before the server is.
func dialTLS(t testing.TB, addr string, c *tls.Config) (*tls.Conn, error) {
	t.Helper()
	conn := tls.Client(dialTCP(t, addr, ""), c)
	return conn, conn.HandshakeContext(t.Context())
}

// closed reads until the server closes the connection.
func closed(t testing.TB, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, err := io.Copy(io.Discard, c)
	var wait net.Error
	if errors.As(err, &wait) && wait.Timeout() {
		t.Error("the server keeps the connection")
	}
}

// wire is a client that speaks HTTP/2 frame by frame.
type wire struct {
	*http2.Framer
	conn net.Conn
	next uint32
	buf  bytes.Buffer
	enc  *hpack.Encoder
}

func speak(t testing.TB, s *site) *wire {
	t.Helper()
	conn, err := dialTLS(t, s.addr, hostile(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	w := &wire{Framer: http2.NewFramer(conn, conn), conn: conn, next: 1}
	w.enc = hpack.NewEncoder(&w.buf)
	w.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := w.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return w
}

// call sends the headers of a call. Fields replace or follow the usual ones.
func (w *wire) call(path string, end bool, fields ...hpack.HeaderField) (uint32, error) {
	usual := []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "https"},
		{Name: ":path", Value: path},
		{Name: ":authority", Value: "x"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}
	for _, f := range fields {
		for i := range 6 {
			if usual[i].Name == f.Name {
				usual[i].Value, f.Name = f.Value, ""
			}
		}
		if f.Name != "" {
			usual = append(usual, f)
		}
	}
	w.buf.Reset()
	for _, f := range usual {
		if err := w.enc.WriteField(f); err != nil {
			return 0, err
		}
	}
	id := w.next
	w.next += 2
	block, first := w.buf.Bytes(), true
	for first || len(block) > 0 {
		n := min(len(block), 16<<10)
		var err error
		if first {
			err = w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:n], EndStream: end, EndHeaders: n == len(block)})
		} else {
			err = w.WriteContinuation(id, n == len(block), block[:n])
		}
		if err != nil {
			return 0, err
		}
		block, first = block[n:], false
	}
	return id, nil
}

// message frames a gRPC message whose length is said to be n.
func message(n int, body []byte) []byte {
	return append([]byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, body...)
}

// answer is how a call ended: the last headers, or the code of a reset.
type answer struct {
	fields map[string]string
	reset  http2.ErrCode
}

// answer reads frames until the call ends.
func (w *wire) answer(t testing.TB, id uint32) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { w.conn.Close() })
	defer stop()
	a := answer{fields: map[string]string{}}
	for {
		f, err := w.ReadFrame()
		if err != nil {
			t.Fatalf("read the answer to call %d: %v", id, err)
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = w.WriteSettingsAck()
			}
		case *http2.PingFrame:
			_ = w.WritePing(true, f.Data)
		case *http2.RSTStreamFrame:
			if f.StreamID == id {
				a.reset = f.ErrCode
				return a
			}
		case *http2.MetaHeadersFrame:
			if f.StreamID != id {
				continue
			}
			for _, h := range f.Fields {
				a.fields[h.Name] = h.Value
			}
			if f.StreamEnded() {
				return a
			}
		}
	}
}

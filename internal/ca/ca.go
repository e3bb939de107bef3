// SPDX-License-Identifier: Apache-2.0

// Package ca has custody of keys: it makes the key material that package pki describes, in files of this machine, and signs
// certificates against Wants. It never decides a name, an address or a lifetime, never makes a certificate authority a second
// time, and never lets a byte of a secret into an error.
//
// Read [Local] and its two methods. What they do to the files of a pair stands in pair.go.
//
//	var keys ca.Local
//	err := keys.Ensure(ctx, pki.Want{Name: "apiserver", Kind: pki.Leaf, CertPath: "/…/apiserver.crt", KeyPath: "/…/apiserver.key", …})
package ca

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/pki"
)

// Local makes key material in files of this machine. The zero value is ready. Both methods may be called at once for
// different Wants, never for one Want twice at a time.
type Local struct {
	Now   func() time.Time // optional: the clock; time.Now when nil
	Built time.Time        // optional: when this program was built; a clock before it is not believed
	// Remote is asked for leaves whose CA is not on this machine.
	Remote Remote

	mu  sync.Mutex          // guards the field below
	due map[[32]byte]string // certificates whose renewal was asked for: hash to path

	// crash stands for a power cut in tests: it is called after every change of a file, and what it returns ends Ensure there.
	crash func(point string) error
}

// firstRelease is the earliest time that a working clock can show to this program.
var firstRelease = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Check compares what is on the disk with the Want and changes nothing. Existence means that any file of the Want exists. The
// detail tells in words what differs; where ok is true it may hold a notice, such as a CA whose renewal is due. An error means
// that nobody knows.
func (l *Local) Check(ctx context.Context, w pki.Want) (ok, exists bool, detail string, err error) {
	if err := ctx.Err(); err != nil {
		return false, false, "", err
	}
	switch w.Kind {
	case pki.CA:
		return l.checkCA(w)
	case pki.Leaf:
		return l.checkLeaf(w)
	case pki.KeyPair:
		return checkKeyPair(w)
	case pki.Secret:
		return checkSecret(w)
	}
	return false, false, "", fmt.Errorf("check %s: unknown kind %q", w.Name, w.Kind)
}

// Ensure makes what the Want asks for, unless it is there. It may be killed between any two lines: the next call finishes
// what was begun. What cannot be made again without breaking the cluster (a CA, a service-account key, a secret) is never
// overwritten: where it differs or is damaged, the error says what to do.
func (l *Local) Ensure(ctx context.Context, w pki.Want) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.ensure(ctx, w); err != nil {
		return fmt.Errorf("ensure %s: %w", w.Name, err)
	}
	return nil
}

func (l *Local) ensure(ctx context.Context, w pki.Want) error {
	if err := removeDebris(w.CertPath, w.KeyPath); err != nil {
		return err
	}
	switch w.Kind {
	case pki.CA:
		return l.ensureCA(w)
	case pki.Leaf:
		return l.ensureLeaf(ctx, w)
	case pki.KeyPair:
		return l.ensureKeyPair(w)
	case pki.Secret:
		return l.ensureSecret(w)
	}
	return fmt.Errorf("unknown kind %q", w.Kind)
}

func (l *Local) now() time.Time {
	if l.Now != nil {
		return l.Now()
	}
	return time.Now()
}

// clock is the time to issue at, or a refusal: a certificate from a wrong clock would be refused by everybody else.
func (l *Local) clock() (time.Time, error) {
	now, floor := l.now(), firstRelease
	if l.Built.After(floor) {
		floor = l.Built
	}
	if now.Before(floor.Add(-backdate)) {
		return time.Time{}, &pki.ClockError{Text: fmt.Sprintf("the clock says %s, which is before this program was made (%s): set the clock", day(now), day(floor))}
	}
	return now, nil
}

// wrote marks that a file has changed, for the kill sweep.
func (l *Local) wrote(point string) error {
	if l.crash == nil {
		return nil
	}
	return l.crash(point)
}

func day(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrDamaged reports that a record exists, but neither of its generations can be read.
var ErrDamaged = errors.New("record is damaged")

// ErrSchema reports that an intact record was written by another version of the program.
var ErrSchema = errors.New("record has another schema")

const (
	maxRecord = 64 << 20
	prevExt   = ".prev"
)

// Save writes v as the newest generation of the record, with mode 0600, and keeps the one before as the
// previous generation. A damaged newest generation never replaces an intact previous one.
func Save(path string, schema int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("save %s: %w", path, err)
	}
	data := append(header(schema, body), body...)
	if len(data) > maxRecord {
		return fmt.Errorf("save %s: %d bytes exceed the limit of %d for a record", path, len(data), maxRecord)
	}
	tmp, err := writeTemp(path, 0o600, data)
	if err != nil {
		return fmt.Errorf("save %s: %w", path, err)
	}
	if err := keepPrevious(path); err != nil {
		return errors.Join(fmt.Errorf("save %s: keep previous: %w", path, err), os.Remove(tmp))
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(fmt.Errorf("save %s: %w", path, err), os.Remove(tmp))
	}
	return SyncDir(filepath.Dir(path))
}

// keepPrevious links the newest generation to the previous one's name, so that path always exists.
func keepPrevious(path string) error {
	data, err := readAll(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, _, err := open(data); err != nil {
		return nil //nolint:nilerr // damaged: keep the older generation
	}
	link := path + prevExt + ".tmp"
	now, err1 := os.Stat(path)
	prev, err2 := os.Stat(path + prevExt)
	if err1 == nil && err2 == nil && os.SameFile(now, prev) { // left by an earlier crash; renaming link onto itself would not remove it
		return nil
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(path, link); err != nil {
		return err
	}
	return os.Rename(link, path+prevExt)
}

// Load reads the newest intact generation into v. The error is an fs.ErrNotExist only if neither generation
// exists, ErrSchema if another version of the program wrote the record, and ErrDamaged in every other case.
func Load(path string, schema int, v any) error {
	_, err := Read(path, schema, v)
	return err
}

// Read is Load that also reports whether v is the previous generation because the newest one is damaged. Then
// the last change is lost, and a caller that depends on it has to find out the actual state.
func Read(path string, schema int, v any) (recovered bool, err error) {
	newest := loadOne(path, schema, v)
	if newest == nil || errors.Is(newest, ErrSchema) {
		return false, newest
	}
	previous := loadOne(path+prevExt, schema, v)
	switch {
	case previous == nil:
		return true, nil
	case errors.Is(newest, fs.ErrNotExist) && errors.Is(previous, fs.ErrNotExist):
		return false, fmt.Errorf("load: %w", newest)
	}
	// The causes are not wrapped: a damaged record must never match fs.ErrNotExist.
	return false, fmt.Errorf("load %s: %w: newest: %s; previous: %s", path, ErrDamaged, newest, previous) //nolint:errorlint // see above
}

// loadOne loads one generation.
func loadOne(path string, schema int, v any) error {
	data, err := readAll(path)
	if err != nil {
		return err
	}
	got, body, err := open(data)
	if err != nil {
		return err
	}
	if got != schema {
		return fmt.Errorf("load %s: %w: %d, want %d", path, ErrSchema, got, schema)
	}
	return json.Unmarshal(body, v)
}

// header is the first line of a record. Its checksum covers the schema and the body.
func header(schema int, body []byte) []byte {
	sum := sha256.New()
	fmt.Fprintf(sum, "%d\n", schema)
	sum.Write(body)
	return fmt.Appendf(nil, "slipway-record %d sha256:%x\n", schema, sum.Sum(nil))
}

// open checks the header of a record and returns its schema and body.
func open(data []byte) (schema int, body []byte, err error) {
	line, body, ok := bytes.Cut(data, []byte("\n"))
	if !ok {
		return 0, nil, errors.New("header is missing")
	}
	if _, err := fmt.Sscanf(string(line), "slipway-record %d ", &schema); err != nil {
		return 0, nil, errors.New("header is malformed")
	}
	if !bytes.Equal(header(schema, body), append(line[:len(line):len(line)], '\n')) {
		return 0, nil, errors.New("checksum mismatch")
	}
	return schema, body, nil
}

// SPDX-License-Identifier: Apache-2.0

// Package strictjson decodes JSON documents without losing anything. A program that ignored the unknown fields of a document from
// a newer version would drop them when it writes the document again.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// Decode decodes exactly one JSON value. Unknown fields and data after the value are errors.
func Decode(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("unexpected data after the document")
	}
	return nil
}

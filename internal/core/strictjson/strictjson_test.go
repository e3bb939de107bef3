// SPDX-License-Identifier: Apache-2.0

package strictjson_test

import (
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/core/strictjson"
)

func TestDecode(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"a": 1}`:          "",
		" {\"a\": 1}\n":     "",
		`{"a": 1, "b": 2}`:  `unknown field "b"`,
		`{"a": 1} {"a": 2}`: "unexpected data after the document",
		`{"a": 1} }`:        "unexpected data after the document",
		`{"a": "1"}`:        "cannot unmarshal string",
		``:                  "EOF",
		`{"a": 1`:           "unexpected EOF",
	} {
		var v struct {
			A int `json:"a"`
		}
		switch err := strictjson.Decode([]byte(text), &v); {
		case want == "" && (err != nil || v.A != 1):
			t.Errorf("decode %q: got %+v, %v", text, v, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("decode %q: got %v, want %q", text, err, want)
		}
	}
}

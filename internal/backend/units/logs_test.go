// SPDX-License-Identifier: Apache-2.0

package units

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRotate(t *testing.T) {
	t.Parallel()
	logs := Logs{t.TempDir()}
	path := logs.Path("u")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close() // a test's file
	for i := range 6 {
		fmt.Fprintf(log, "generation %d\n", i)
		if err := logs.rotate("u", 10); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprint(log, "short\n")
	if err := logs.rotate("u", 10); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, ext := range []string{"", ".1", ".2", ".3", ".4"} {
		data, _ := os.ReadFile(path + ext)
		got[ext] = string(data)
	}
	want := map[string]string{"": "short\n", ".1": "generation 5\n", ".2": "generation 4\n", ".3": "generation 3\n", ".4": ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	logs := Logs{t.TempDir()}
	long := strings.Repeat(strings.Repeat("x", 99)+"\n", 2000)
	for name, tt := range map[string]struct {
		content string
		n       int
		want    []string
	}{
		"none":      {"", 3, nil},
		"fewer":     {"a\nb\n", 3, []string{"a", "b"}},
		"more":      {"a\nb\nc\nd", 2, []string{"c", "d"}},
		"very long": {long + "end\n", 1, []string{"end"}},
	} {
		if err := os.WriteFile(logs.Path(name), []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := logs.Tail(name, tt.n)
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
	if got, err := logs.Tail("missing", 1); got != nil || err != nil {
		t.Errorf("missing log: got %v, %v", got, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// format is the value of --output.
type format string

const (
	asText format = "text"
	asJSON format = "json"
	asYAML format = "yaml"
)

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "text|json|yaml" }

// Set accepts text, json and yaml.
func (f *format) Set(s string) error {
	switch format(s) {
	case asText, asJSON, asYAML:
		*f = format(s)
		return nil
	}
	return fmt.Errorf("use text, json or yaml")
}

func outputFlag(cmd *cobra.Command, f *format) {
	*f = asText
	cmd.Flags().VarP(f, "output", "o", "output format")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
}

const apiVersion = "slipway.dev/v1alpha1"

// object writes a result as JSON or YAML, with apiVersion and kind as the first fields.
func (f format) object(w io.Writer, kind string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", kind, err)
	}
	text := fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q`, apiVersion, kind)
	if rest := bytes.TrimPrefix(body, []byte("{")); len(rest) > 1 {
		text = append(append(text, ','), rest...)
	} else {
		text = append(text, '}')
	}
	if f == asYAML {
		if text, err = yaml.JSONToYAML(text); err != nil {
			return fmt.Errorf("write %s: %w", kind, err)
		}
		_, err = w.Write(text)
		return err
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, text, "", "  "); err != nil {
		return fmt.Errorf("write %s: %w", kind, err)
	}
	_, err = fmt.Fprintln(w, pretty.String())
	return err
}

// table writes rows in aligned columns. The first row has the column names.
func table(w io.Writer, rows [][]string) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, cell)
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}

// ago formats a duration for a table: 850ms, 12s, 5m12s, 3h05m.
func ago(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// checkedWriter records the first write error, so that a command whose result could not be written does not succeed.
type checkedWriter struct {
	io.Writer
	err error
}

// Write implements io.Writer.
func (w *checkedWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if w.err == nil {
		w.err = err
	}
	return n, err
}

// bare returns the stream inside a checkedWriter, so that a child process can inherit it.
func bare(w io.Writer) io.Writer {
	if c, ok := w.(*checkedWriter); ok {
		return c.Writer
	}
	return w
}

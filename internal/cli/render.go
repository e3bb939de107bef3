// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/bootstrap"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/outputdir"
	"github.com/slipway-project/slipway/internal/render"
	"github.com/slipway-project/slipway/internal/report"
)

// renderCommand is there when main has given it forms.
func renderCommand(e Env) *cobra.Command {
	if len(e.Forms) == 0 {
		return nil
	}
	var source clusterdir.Source
	var node, to string
	var out format
	form := formFlag{forms: e.Forms}
	cmd := &cobra.Command{
		Use:   "render",
		Short: "Write a node's plan as files for another program",
		Long: `Write what one node must have as files for another program. What the form cannot say is told, with the reason and
who has to do it instead. Nothing is touched but the folder, and that only if it is empty or was written by this command before.

Forms:
` + form.list(),
		Example: `  slipway render --format ` + form.first() + ` -f cluster.yaml --to out
  slipway render --format ` + form.first() + ` --node dev-main-0 --to - | less
  slipway render --format ` + form.first() + ` --output json` + form.examples(),
		Args: noArgs,
	}
	specFlags(e, cmd, &source)
	cmd.Flags().Var(&form, "format", "form to write (required): "+strings.Join(form.names(), ", "))
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(form.names(), cobra.ShellCompDirectiveNoFileComp))
	nodeFlag(e, cmd, &node, &source.Name)
	cmd.Flags().StringVar(&to, "to", "-", "folder to write to, or - to print")
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if form.chosen == nil {
			return usageError{errors.New("--format is missing: there are " + strings.Join(form.names(), ", "))}
		}
		if to == "" {
			return usageError{errors.New("--to is empty: name a folder, or - to print")}
		}
		p, err := bootstrap.PlanNode(cmd.Context(), *e.Inventory, source, node)
		if err != nil {
			return err
		}
		r, err := form.chosen.Render(cmd.Context(), *e.Inventory, p)
		if err != nil {
			return fmt.Errorf("render %s for %s: %w", form.chosen.Name, p.Plan.Node, err)
		}
		if to != "-" {
			if err := outputdir.Write(to, r.Files); err != nil {
				return err
			}
		}
		return showRendered(e, out, form.chosen.Name, to, p, r)
	}
	return cmd
}

// showRendered prints the files, or what was written, and always what was left out.
func showRendered(e Env, out format, form, to string, p bootstrap.PlannedNode, r render.Rendered) error {
	if out != asText {
		return out.object(e.Out, "Rendered", renderedView(form, to, p, r))
	}
	for _, a := range p.Assumed {
		fmt.Fprintln(e.Err, "note: "+a)
	}
	if to == "-" {
		printFiles(e.Out, r.Files)
	} else {
		fmt.Fprintf(e.Out, "wrote %s for node %s to %s\n", report.Count(len(r.Files), "file"), p.Plan.Node, to)
	}
	if len(r.Omitted) == 0 {
		return nil
	}
	fmt.Fprintf(e.Err, "left out, because %s cannot say it:\n", form)
	for _, group := range byReason(r.Omitted) {
		fmt.Fprintln(e.Err, wrap("  ", group.refs))
		fmt.Fprintln(e.Err, "      "+group.reason)
	}
	return nil
}

// printFiles prints one file as it is, and several with their names between them.
func printFiles(w io.Writer, files []render.File) {
	for _, f := range files {
		if len(files) > 1 {
			fmt.Fprintf(w, "-- %s --\n", f.Path)
		}
		_, _ = w.Write(f.Content) // New's writer remembers
		if len(files) > 1 && len(f.Content) > 0 && f.Content[len(f.Content)-1] != '\n' {
			fmt.Fprintln(w)
		}
	}
}

type leftGroup struct {
	reason string
	refs   []string
}

func byReason(left []render.Omitted) []leftGroup {
	var out []leftGroup
	at := map[string]int{}
	for _, l := range left {
		i, ok := at[l.Reason]
		if !ok {
			i = len(out)
			at[l.Reason] = i
			out = append(out, leftGroup{reason: l.Reason})
		}
		out[i].refs = append(out[i].refs, l.Ref.String())
	}
	return out
}

type fileView struct {
	Path    string   `json:"path"`
	Mode    string   `json:"mode"`
	Content string   `json:"content,omitempty"` // text; absent when the files were written to a folder
	Base64  []byte   `json:"base64,omitempty"`  // what is no text
	Refs    []string `json:"refs,omitempty"`
}

type leftView struct {
	Ref    string `json:"ref"`
	Reason string `json:"reason"`
}

func renderedView(form, to string, p bootstrap.PlannedNode, r render.Rendered) map[string]any {
	files, left := []fileView{}, []leftView{}
	for _, f := range r.Files {
		v := fileView{Path: f.Path, Mode: fmt.Sprintf("%04o", f.Mode), Refs: refs(f.Refs)}
		switch {
		case to != "-":
		case utf8.Valid(f.Content):
			v.Content = string(f.Content)
		default:
			v.Base64 = f.Content
		}
		files = append(files, v)
	}
	for _, l := range r.Omitted {
		left = append(left, leftView{l.Ref.String(), l.Reason})
	}
	return map[string]any{
		"cluster": p.Plan.Cluster, "node": p.Plan.Node, "format": form, "to": to, "files": files, "left": left, "assumed": append([]string{}, p.Assumed...),
	}
}

// formFlag is the value of --format.
type formFlag struct {
	forms  []bootstrap.Form
	chosen *bootstrap.Form
}

func (f *formFlag) String() string {
	if f.chosen == nil {
		return ""
	}
	return f.chosen.Name
}

func (f *formFlag) Type() string { return "form" }

// Set refuses what is not in the table.
func (f *formFlag) Set(s string) error {
	for i := range f.forms {
		if f.forms[i].Name == s {
			f.chosen = &f.forms[i]
			return nil
		}
	}
	return errors.New("there are " + strings.Join(f.names(), ", "))
}

func (f *formFlag) names() []string {
	var out []string
	for _, x := range f.forms {
		out = append(out, x.Name)
	}
	return out
}

func (f *formFlag) first() string { return append(f.names(), "")[0] }

// examples are those that forms have of their own.
func (f *formFlag) examples() string {
	var b strings.Builder
	for _, x := range f.forms {
		if x.Example != "" {
			fmt.Fprintf(&b, "\n  slipway render --format %s %s", x.Name, x.Example)
		}
	}
	return b.String()
}

func (f *formFlag) list() string {
	var b strings.Builder
	for _, x := range f.forms {
		fmt.Fprintf(&b, "  %-12s  %s\n", x.Name, x.Summary)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

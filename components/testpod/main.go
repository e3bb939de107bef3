// SPDX-License-Identifier: Apache-2.0

// Command testpod is what end-to-end tests and the benchmark run in pods: a
// small HTTP server and the two questions a test asks from inside a cluster,
// "can I reach it" and "does its name resolve".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const usage = `usage:
  testpod serve [--port 8080]
  testpod get [--retry-for 30s] URL
  testpod lookup [--retry-for 30s] NAME
  testpod sleep
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err := run(ctx, os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "testpod:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, command string, args []string) error {
	flags := flag.NewFlagSet(command, flag.ExitOnError)
	port := flags.Int("port", 8080, "port to listen on")
	retry := flags.Duration("retry-for", 0, "how long to try again after an error")
	operands := parse(flags, args)

	switch {
	case command == "serve" && len(operands) == 0:
		return serve(ctx, *port)
	case command == "get" && len(operands) == 1:
		return again(ctx, *retry, func(ctx context.Context) error { return get(ctx, operands[0]) })
	case command == "lookup" && len(operands) == 1:
		return again(ctx, *retry, func(ctx context.Context) error { return lookup(ctx, operands[0]) })
	case command == "sleep":
		<-ctx.Done()
		return nil
	}
	return errors.New(usage)
}

// parse takes flags before and after operands.
func parse(flags *flag.FlagSet, args []string) (operands []string) {
	_ = flags.Parse(args)
	for flags.NArg() > 0 {
		operands = append(operands, flags.Arg(0))
		_ = flags.Parse(flags.Args()[1:])
	}
	return operands
}

func serve(ctx context.Context, port int) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	server := &http.Server{
		Addr:              fmt.Sprintf(":%d", port),
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, name)
		}),
	}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// again runs try until it succeeds, or returns its last error when the time is
// over. Each try has two seconds: a lost packet must not eat the whole time.
func again(ctx context.Context, within time.Duration, try func(context.Context) error) error {
	end := time.Now().Add(within)
	for {
		once, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := try(once)
		cancel()
		if err == nil || ctx.Err() != nil || !time.Now().Before(end) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func get(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s", url, response.Status)
	}
	_, err = os.Stdout.Write(body)
	return err
}

// lookup prints the addresses of name and the moment of the answer, on one line.
func lookup(ctx context.Context, name string) error {
	addresses, err := net.DefaultResolver.LookupHost(ctx, name)
	if err != nil {
		return err
	}
	fmt.Println(strings.Join(addresses, " "), time.Now().UTC().Format(time.RFC3339Nano))
	return nil
}

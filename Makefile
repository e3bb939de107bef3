# SPDX-License-Identifier: Apache-2.0
# Every target is described by the comment behind it; `make help` prints them.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
BUILD   := CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags "$(LDFLAGS)"
LINT    := bin/golangci-lint
# Tests that need real components find them here, by name.
COMPONENTS := .cache/components
export SLIPWAY_TEST_BINARIES ?= $(CURDIR)/$(COMPONENTS)
UPFLAGS ?=
BENCHFLAGS ?=

.DEFAULT_GOAL := help
LONG_SHARDS := long-sim long-sim-crash long-mutants long-ha long-boots long-apply long-staticpods-cluster long-staticpods-kill long-sweep-init long-sweep-join
.PHONY: help build preflight components up down test unit e2e check fmt lint race gen gen-check bench picture long $(LONG_SHARDS) clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-24s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## bin/slipway, one static binary
	@mkdir -p bin
	$(BUILD) -o bin/slipway ./cmd/slipway

preflight: build ## install what the tests need and this host lacks (needs root if there is anything to install)
	bin/slipway preflight --install --for tests

components: preflight ## the real components for the tests, built from source if the store lacks them
	bin/slipway bundle build
	bin/slipway bundle unpack $(COMPONENTS)

up: build ## boot a cluster; components are built first if need be
	bin/slipway up $(UPFLAGS)

down: build ## remove the cluster that `make up` made
	bin/slipway down

test: unit e2e ## all tests: unit, golden, conformance, real cluster

unit: components ## unit, golden and conformance tests, and a sample of the mutants
	SIM_MUTANTS=3 $(GO) test ./api/... ./cmd/... ./internal/... ./test/bare ./test/bench ./test/retry

# CI sets this to "go run ./test/retry", which runs failed tests once more.
E2E_TEST ?= $(GO) test
e2e: components ## end-to-end tests with real clusters
	$(E2E_TEST) -count=1 -p=1 -timeout=45m ./test/e2e/...

# Each shard finishes within 80 minutes; its time limit makes sure of that. The test that reads a variable documents it.
LONG := $(GO) test -count=1 -p=1 -timeout=80m
long: $(LONG_SHARDS) ## all long forms of the tests, hours (needs root); the shards can also run one by one
long-sim: components ## long: the simulator's stories and random runs, all of them
	SIM_ALL=1 $(LONG) -skip 'Crash|Mutants' ./internal/sim
long-sim-crash: components ## long: the simulator, a crash at every step
	SIM_ALL=1 $(LONG) -run Crash ./internal/sim
long-mutants: components ## long: all mutants of the simulator
	SIM_MUTANTS=all $(LONG) -run Mutants ./internal/sim
long-ha: components ## long: a worker is cut off for ten minutes
	SLIPWAY_E2E_LONG=1 $(LONG) ./test/e2e/ha
long-boots: components ## long: ten boots of five machines with systemd
	SLIPWAY_BOOTS=10 $(LONG) -run '^TestBoots$$' ./test/e2e/systemd
long-apply: components ## long: five machines over SSH
	SLIPWAY_E2E_APPLY=five $(LONG) ./test/e2e/apply
long-staticpods-cluster: components ## long: the cluster suite with static pods
	SLIPWAY_E2E_FORM=StaticPods $(LONG) ./test/e2e/cluster
long-staticpods-kill: components ## long: the kill suite with static pods
	SLIPWAY_E2E_FORM=StaticPods $(LONG) ./test/e2e/kill
long-sweep-init: components ## long: a boot for each crash of the bootstrap
	SLIPWAY_SWEEP=alone $(LONG) -run '^TestInit$$' ./test/e2e/sweep
long-sweep-join: components ## long: a boot for each crash of the other operations
	SLIPWAY_SWEEP=alone $(LONG) -skip '^TestInit$$' ./test/e2e/sweep

check: preflight fmt lint gen-check race ## exactly what CI runs before the tests

fmt: $(LINT) ## fail if a file is not formatted
	$(LINT) fmt --diff

lint: $(LINT) ## the linters of .golangci.yml, import rules included
	$(LINT) run ./...
	$(GO) test ./internal/

race: components ## unit tests under the race detector
	$(GO) test -race ./api/... ./cmd/... ./internal/... ./test/bench ./test/retry

gen: preflight bin/protoc-gen-go bin/protoc-gen-go-grpc ## regenerate all generated code
	PATH="$(CURDIR)/bin:$$PATH" protoc --go_out=. --go_opt=module=github.com/slipway-project/slipway \
	  --go-grpc_out=. --go-grpc_opt=module=github.com/slipway-project/slipway api/*/v1/*.proto internal/etcd/etcdpb/*.proto
	$(GO) generate ./...

gen-check: components gen ## fail if generated code is not up to date
	git diff --exit-code -- api internal
	@test -z "$$(git ls-files --others --exclude-standard -- api internal)" || { git status --short -- api internal; exit 1; }

bench: components ## boot and destroy clusters, print the figures of docs/performance.md (BENCHFLAGS="-only forms" for less)
	$(GO) build -o bin/bench ./test/bench
	bin/bench -slipway bin/slipway $(BENCHFLAGS)

# asciinema and npx (Debian: asciinema, npm) are needed for this target only.
picture: build ## record slipway up on a terminal into docs/up.svg, the picture in the README
	bin/slipway down --name docs >/dev/null 2>&1 || true
	asciinema rec --overwrite -q --cols 100 --rows 34 -c "bin/slipway up --name docs" bin/up.cast
	npx --yes svg-term-cli@2.1.1 --in bin/up.cast --out docs/up.svg --window --width 100 --height 34 --at 600000
	bin/slipway down --name docs

clean: ## remove what was built here (not the component store)
	rm -rf bin .cache

bin/golangci-lint: tools/go.mod
	cd tools && $(GO) build -o ../bin/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

bin/protoc-gen-go bin/protoc-gen-go-grpc: tools/go.mod
	cd tools && $(GO) build -o ../bin/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc

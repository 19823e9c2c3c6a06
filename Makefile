# ExecSession. `make help` lists the targets; each can be run again and again.
# Go is the one thing that must be there; Debian's package manager brings the rest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X execsession.dev/agentd.Version=$(VERSION) -X main.version=$(VERSION)
# One way to compile for everything but the race detector, so that a package is compiled once: static, and trimmed of
# the checkout's path, so that another clone finds it in the cache.
export CGO_ENABLED := 0
export GOFLAGS := $(shell go env GOFLAGS 2>/dev/null) -trimpath
CLUSTER_CONFIG := $(CURDIR)/bin/cluster/admin.conf
GENERATED := api config/crd charts/execsession/templates/crds agentd/wire

# apt-install PACKAGE... installs what is missing.
define apt-install
@for p in $(1); do dpkg -s $$p >/dev/null 2>&1 || missing="$${missing:-} $$p"; done; \
if [ -n "$${missing:-}" ]; then echo "installing$$missing"; export DEBIAN_FRONTEND=noninteractive; \
apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing >/dev/null; fi
endef

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Build

.PHONY: build
build: ## Build manager, agentd and kubectl-execsession into bin/
	@echo "building manager, agentd and kubectl-execsession (minutes the first time)"
	@go build -tags grpcnotrace -ldflags "$(LDFLAGS)" -o bin/ ./cmd/...

.PHONY: generate
generate: ## Generate deepcopy functions, CRDs and the wire protocol's code
	$(call apt-install,protobuf-compiler libprotobuf-dev)
	@go build -modfile=hack/tools.mod -o bin/tools/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
	@PATH="$(CURDIR)/bin/tools:$$PATH" protoc -I agentd/wire --go_out=agentd/wire --go_opt=paths=source_relative \
	  --go-grpc_out=agentd/wire --go-grpc_opt=paths=source_relative agent.proto
	@hack/generate-api.sh

.PHONY: verify
verify: generate ## Fail if generated files or go.mod are out of date
	@go mod tidy -diff
	@changed="$$(git status --porcelain -- $(GENERATED))"; if [ -n "$$changed" ]; then \
	  echo "generated files differ from what is committed:"; echo "$$changed"; git --no-pager diff -- $(GENERATED) | head -50; exit 1; fi

.PHONY: lint
lint: ## Run the linters of .golangci.yml
	@echo "linting (minutes the first time)"
	@go tool -modfile=hack/golangci.mod golangci-lint run ./...

##@ Cluster

.PHONY: cluster-up
cluster-up: ## Build (cached) and boot the one-node cluster; prints the KUBECONFIG to use
	@go run ./hack/cluster up
	@eval "$$(go run ./hack/cluster env)"; mkdir -p bin; ln -sfn "$$KUBEBUILDER_ASSETS/kubectl" "$$KUBEBUILDER_ASSETS/helm" bin/
	@echo 'export PATH=$(CURDIR)/bin:$$PATH'

.PHONY: cluster-status
cluster-status: ## Say what runs and whether it is healthy
	@go run ./hack/cluster status

.PHONY: cluster-down
cluster-down: ## Stop the cluster and remove its state
	@go run ./hack/cluster down

.PHONY: images
images: build ## Write the product's and the example workspace's image and load them into the cluster
	@hack/images.sh

.PHONY: tools-image
tools-image: ## Make (cached) the image of tools that the tests' sessions run, and load it into the cluster
	@hack/images.sh tools

.PHONY: deploy
deploy: ## Install or upgrade the chart in the cluster
	@hack/deploy.sh

.PHONY: demo
demo: ## From nothing to the output of a command that ran in a session's pod
	@hack/demo.sh

.PHONY: env
env: ## Print the variables to work with the cluster by hand: eval "$(make -s env)"
	@go run ./hack/cluster env

##@ Check

.PHONY: test
test: build ## Run everything that must pass, on a real cluster; prints what was skipped and why
	@hack/test.sh

.PHONY: bench
bench: build ## Measure the product beside a floor of the same run, into bench/results.json; BENCH="-group engine" measures a part
	@go run -tags grpcnotrace ./test/bench $(BENCH)

.PHONY: dockerfile
dockerfile: ## Prove the Dockerfile with buildah on a builder image made from this machine's Go
	@test/dockerfile/run.sh

.PHONY: presubmit
presubmit: verify lint test ## What must pass before a change lands

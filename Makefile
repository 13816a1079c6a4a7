# Every target with a ## comment shows up in `make help`.

BIN       := bin/shapeproxy
FUZZTIME  ?= 30s
COUNT     ?= 1
BENCH     ?= .
STATICCHECK := go tool -modfile=tools/go.mod staticcheck

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## compile bin/shapeproxy
	CGO_ENABLED=0 go build -trimpath -o $(BIN) ./cmd/shapeproxy

.PHONY: run
run: build ## start the demo: a fragile upstream, the proxy before it, the live page
	@$(BIN) demo

.PHONY: test
test: ## vet, then every test that this machine has the servers for
	go vet ./...
	@go run ./internal/testdeps/missing
	go test ./...

.PHONY: test-deps
test-deps: ## install the real servers and the browser that some tests use (Debian)
	.ci/test-deps

.PHONY: race
race: ## every test under the race detector
	go test -race ./...

.PHONY: faults
faults: ## a network between proxy and upstream that delays, resets, swallows and slices
	cd bench/faults && go vet ./... && go test ./...

.PHONY: lint
lint: ## gofmt, vet and staticcheck
	@unformatted=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not gofmt'd:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	$(STATICCHECK) ./...

.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZTIME (30s)
	@set -e; for dir in $$(go list -f '{{.Dir}}' ./...); do \
		for target in $$(cd $$dir && grep -hoE '^func Fuzz[A-Za-z0-9_]+' *_test.go 2>/dev/null | cut -d' ' -f2); do \
			echo "$$target in $$dir"; \
			(cd $$dir && go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) .); \
		done; \
	done

.PHONY: bench
bench: ## the Go benchmarks named by BENCH (.), COUNT (1) times each
	go test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) ./...

.PHONY: bench-peers
bench-peers: ## departures, processor time and resends, beside NGINX and a plain ReverseProxy
	for what in accuracy busy rate leave memory idle cpu resend; do go run ./bench $$what || exit 1; done

.PHONY: bench-limiters
bench-limiters: ## the limiter beside other Go libraries: COUNT (1) rounds, then the medians
	cd bench/limiters && for round in $$(seq $(COUNT)); do \
		go test -run '^$$' -bench '$(BENCH)' . || exit 1; \
	done | tee bench.out && go tool benchstat bench.out

.PHONY: e2e
e2e: ## a real access log through the proxy to a real nginx, every request to account, pages in a real browser
	E2E=full go test -count=1 -v -p 1 ./bench/e2e ./bench/ledger
	go test -count=1 -p 1 -run 'Browser|LivePage|Terminal' ./internal/admin ./cmd/shapeproxy

.PHONY: fleet
fleet: ## several proxies on one Redis: who is killed, what is restarted, and what is promised of it; figures
	FLEET=full go test -count=1 -v -parallel 1 ./bench/fleet

.PHONY: conformance
conformance: ## suites that others wrote, with the proxy between: a line of result each
	cd proxy && TORTURE=full go test -count=1 -run 'TestVarnishtest|TestTorture'
	cd bench/conformance && go vet . && go test -count=1 -timeout 30m

.PHONY: deb
deb: build ## make dist/shapeproxy_VERSION_ARCH.deb
	deploy/debian/build

.PHONY: deb-try
deb-try: deb ## install the package on this machine, run it and remove it (root, Debian)
	deploy/debian/try

.PHONY: check
check: lint race faults e2e ## all that must hold before a change is sent

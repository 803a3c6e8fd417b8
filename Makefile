# `make` lists what there is. Everything runs in .venv, which is made once and renewed when pyproject.toml changes:
# what declctl needs to run for the demo, and what its tests need for the rest.

PYTHON ?= $(shell for p in python3.11 python3 python3.14 python3.13 python3.12; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && break; done)
BIN := .venv/bin
RUNS := .venv/.installed
TESTS := .venv/.installed-dev
BENCHES := .venv/.installed-uvloop

.DEFAULT_GOAL := help
.PHONY: help demo test test-rest test-all mutants lint types imports examples check soak bench bench-full e2e-real dist tools browser picture newest

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
	|| sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1 - \2/p' $(MAKEFILE_LIST)

$(RUNS): pyproject.toml
	@test -n "$(PYTHON)" || { \
	echo "declctl needs Python 3.11 or newer, and none was found as python3.11 or python3. Install one, or name it:" \
	"make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "making .venv with $(PYTHON) (once; a minute or so)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(TESTS): $(RUNS)
	@echo "adding what the tests need (once; another minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@# Written once, here, and not by each worker: the tests' bytecode.
	@$(BIN)/python -m pytest -qq --collect-only tests plugins >.venv/collected || { tail -n 40 .venv/collected; exit 1; }
	@touch $@

demo: $(RUNS) ## events from a sandbox, and a handler to edit while they come
	@exec $(BIN)/python examples/demo.py

SUITES ?= tests plugins
# Two for each core fill it; more only collect the tests once more each. Some scenarios run on a real API server, too, if there is one.
WORKERS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
# SEED=N repeats an order; by default each run has its own.
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --no-loadscope-reorder $(if $(SEED),--randomly-seed=$(SEED))
# Without bytecode, each worker would compile each test, and each of some hundred child processes declctl.
unexport PYTHONDONTWRITEBYTECODE

test: $(TESTS) ## what to run before each commit: rooms, properties, promises, behaviour, and scenarios; five minutes on two cores
	$(PYTEST) -m "not thorough" $(SUITES)

test-rest: $(TESTS) ## what `make test` leaves out; with KUBEBUILDER_ASSETS or DECLCTL_TEST_KUBECONFIG a real API server too
	$(PYTEST) -rs -m thorough $(SUITES)

test-all: test test-rest ## all tests

MUTANTS ?= 150

mutants: $(TESTS) ## do the tests find planted faults? half an hour on an idle machine; MUTANTS=20 for a look
	$(BIN)/python -m tests.mutants --mutants $(MUTANTS)

lint: $(TESTS) ## style: ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(TESTS) ## types: pyright, strict
	$(BIN)/pyright

imports: $(TESTS) ## which room may import which: import-linter
	$(BIN)/lint-imports

examples: $(TESTS) ## every example against the sandbox, and what README and docs/ show
	$(BIN)/python -m pytest -q tests/promises

check: lint types imports test-all ## everything that must hold before a merge

HISTORIES ?= 1000

ANSWERS ?= 1000000

soak: $(TESTS) ## hostile answers and requests at random, random histories (HISTORIES=…), then 1,000 reloads; half an hour
	DECLCTL_FUZZED_ANSWERS=$(ANSWERS) $(BIN)/python -m pytest -q -s -p no:logging \
	tests/hostile/test_server_answers.py -k test_no_answer_raises
	DECLCTL_SOAK=1 $(BIN)/python -m pytest -q -s -p no:logging tests/hostile/test_admin_requests.py \
	-k test_no_request_is_a_fault
	DECLCTL_SOAK=$(HISTORIES) $(BIN)/python -m pytest -q -s -p no:logging tests/properties/test_informer.py
	DECLCTL_SOAK=1 $(BIN)/python -m pytest -q -s -p no:logging tests/properties/test_filtered_handlers.py
	DECLCTL_SOAK=1 $(BIN)/python -m pytest -q -s -p no:logging tests/e2e/test_storms.py \
	tests/behaviour/test_random_edits.py tests/behaviour/test_leaks.py

$(BENCHES): $(RUNS)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[uvloop]'
	@touch $@

bench: $(BENCHES) ## figures beside other clients, 20,000 pods, some minutes (benchmarks/)
	cd benchmarks && ../$(BIN)/python -m harness quick

bench-full: $(BENCHES) ## all figures of docs/performance.md and docs/reference/figures.md, written into them; some hours
	cd benchmarks && ../$(BIN)/python -m harness full && ../$(BIN)/python -m harness.report

e2e-real: $(TESTS) ## the end-to-end tests against a real API server alone
	@test -n "$$KUBEBUILDER_ASSETS$$DECLCTL_TEST_KUBECONFIG" || { \
	echo "Set KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver (as setup-envtest makes), or" \
	"DECLCTL_TEST_KUBECONFIG to a kubeconfig of a cluster for tests." >&2; exit 2; }
	$(BIN)/python -m pytest -q -rs -m real tests/e2e

DIST ?= dist

# The time in the archives is that of the last commit: the same files make the same bytes.
dist: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1700000000)
dist: $(TESTS) ## sdist and wheel of declctl and of each plugin, into dist/
	@set -e; for folder in . plugins/*/; do \
	(cd "$$folder" && "$(abspath $(BIN))/python" -m hatchling build -d "$(abspath $(DIST))"); done
	@$(BIN)/python -m twine check --strict $(DIST)/*

# In an environment of its own: .venv keeps the bounds of pyproject.toml.
newest: $(RUNS) ## the newest aiohttp and kubernetes, above the bounds of pyproject.toml too: do the tests of what uses them pass?
	@test -x .venv/newest/bin/python || $(BIN)/python -m venv .venv/newest
	@.venv/newest/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@.venv/newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade aiohttp kubernetes
	.venv/newest/bin/python -m pytest -q -n $(WORKERS) tests/rooms/transport tests/rooms/admin tests/hostile tests/promises/test_internals.py

TOOLS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/declctl-tools

tools: ## helm, actionlint and promtool, which some tests use if they are on the PATH; needs Go, and some minutes once
	@mkdir -p $(TOOLS)
	@test -x $(TOOLS)/helm || GOBIN=$(TOOLS) go install helm.sh/helm/v3/cmd/helm@v3.18.6
	@test -x $(TOOLS)/actionlint || GOBIN=$(TOOLS) go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
	@test -x $(TOOLS)/promtool || GOBIN=$(TOOLS) go install -tags remove_all_sd github.com/prometheus/prometheus/cmd/promtool@v0.316.0

BROWSER := .venv/.installed-browser

$(BROWSER): $(TESTS)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[browser]'
	@touch $@

# Playwright drives the Chromium of this machine, and downloads none.
browser: $(BROWSER) ## what the tests of the admin page need: playwright, and Chromium if apt can install it here
	@test -n "$$DECLCTL_TEST_CHROMIUM" || command -v chromium >/dev/null || command -v google-chrome >/dev/null || { \
	test "$$(id -u)" = 0 && command -v apt-get >/dev/null && timeout 120 apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive timeout 480 \
	apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; } || { \
	echo "There is no chromium here; install it, or name another one as DECLCTL_TEST_CHROMIUM." >&2; exit 2; }

picture: browser ## docs/page.png anew: 15 minutes of the admin page over a lively sandbox
	PYTHONPATH=$(CURDIR) $(BIN)/python tests/e2e/picture.py

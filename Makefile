# The commands of the project. Everything lives in .venv and .cache; both may be deleted at any time.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: run setup test check soak lint types clean

run: $(STAMP)            ## start the reference server
	@$(BIN)/python -m dovetail.reference

setup: $(STAMP)          ## make .venv and nothing else

test: $(STAMP) .cache/suites/.fetched lint types   ## lint, types, every test
	$(BIN)/pytest -n 2 -m "not soak"

check: $(STAMP) lint types   ## the inner loop: lint, types, the quick tests
	$(BIN)/pytest -n 2 -m "not soak and not slow"

soak: $(STAMP) .cache/suites/.fetched   ## the long forms of the slow proofs
	$(BIN)/pytest -m soak --timeout 3600 -s

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

$(STAMP): pyproject.toml scripts/setup
	PYTHON=$(PYTHON) scripts/setup
	@touch $@

.cache/suites/.fetched: scripts/fetch_suites.py $(STAMP)
	$(BIN)/python scripts/fetch_suites.py
	@touch $@

clean:
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache

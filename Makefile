# Every target sets up what it needs; the second time that costs nothing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEMO   := fedavg-small-digits fedavg-large-digits heterofl-digits fedrolex-digits fjord-digits fed-dropout-digits

.PHONY: help demo test check lint types imports bench clean

help:            ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY)   ## compare methods on digits, with devices of five sizes: a table and demo/report.html
	@rm -rf demo
	$(BIN)/nestling compare $(DEMO) --out demo

test: $(READY)   ## all tests, on every core
	$(BIN)/python -m pytest -n auto

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

check: lint types imports test   ## what CI runs: lint, types, import contract, tests

# Other systems that rounds are compared with have environments of their own, as their pins differ. Where one cannot be
# made, say without a network, the benchmark tells so and measures the rest.
OTHERS := .venv-flower/.ready .venv-pfl/.ready

.venv-%/.ready: bench/%.txt constraints.txt
	-@$(PYTHON) -m venv .venv-$* \
	&& .venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch \
	&& .venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt -r $< \
	&& touch $@

bench: $(READY) $(OTHERS)  ## speed and memory as ratios, side by side in one run; PARTS=rounds for some of it
	$(BIN)/python -m nestling bench $(PARTS)

clean:           ## remove the environment and caches
	rm -rf $(VENV) .venv-flower .venv-pfl .mypy_cache .ruff_cache .import_linter_cache .hypothesis

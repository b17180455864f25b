# Every target sets up what it needs; nothing is done twice.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEMO   := $(VENV)/.demo-ready

.PHONY: help demo devices-demo test slow avx2 check coverage lint types imports golden bench clean

help:            ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

PIP    := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable

# What pip does, without the packages that are there already; make goes on only if pip succeeded.
define install
	@rm -f $@.failed
	@{ $(PIP) '$(1)' || touch $@.failed; } | { grep --line-buffered -v "already satisfied" || true; }
	@test ! -e $@.failed
	@touch $@
endef

$(DEMO): pyproject.toml constraints.txt
	@echo "Installing what the demo needs into $(VENV), once: PyTorch, scikit-learn and what they depend on."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(call install,.[demo])

$(READY): $(DEMO)
	@echo "Installing what tests and checks need into $(VENV), once: Ray, transformers, mypy, …"
	$(call install,.[dev])

demo: $(DEMO)    ## compare methods on digits, with devices of five sizes: a table and demo/report.html
	@rm -rf demo
	@$(BIN)/nestling demo --out demo

# Flower pins other versions of packages, so its programs have an environment of their own (see below).
devices-demo: $(READY) .venv-flower/.ready   ## three devices on this machine, with certificates and keys: demo-devices/run.html
	@rm -rf demo-devices
	PYTHONPATH=$(CURDIR) .venv-flower/bin/python examples/flower/deploy.py demo-devices
	$(BIN)/nestling report demo-devices/run --out demo-devices/run.html

# Each worker starts with consecutive tests and takes over tests of others at the end, so that what the tests of a file
# share (nets, engines, a Ray) is created once and not by every worker.
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

test: $(READY)   ## all tests but the slow ones, on every core
	$(PYTEST) $(COVER) -m "not slow"

slow: $(READY)   ## the tests marked slow (pytest says 5 where there are none)
	$(PYTEST) -m slow tests || test $$? = 5

# oneDNN chooses its kernels by the processor: on one with AVX-512, the kernels of most laptops would not be tested.
TRAINING := tests/client tests/kernels tests/methods tests/nets tests/tasks tests/server/test_round.py

avx2: $(READY)   ## the tests that train, with the kernels of processors without AVX-512
	@if grep -qsw avx512f /proc/cpuinfo; then \
	  ONEDNN_MAX_CPU_ISA=AVX2 $(PYTEST) -m "not slow" $(TRAINING); \
	else \
	  echo "make avx2: nothing to do; this processor has no AVX-512, so 'make test' has run these kernels already"; \
	fi

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

check: COVER := --cov --cov-report=
check: lint types imports docs test coverage slow   ## lint, types, import contract, the site, all tests, and which lines they reach

# The coverage of `make test`, without worker processes and programs that tests start.
coverage: $(READY)
	@$(BIN)/coverage report --sort=cover | awk 'NR <= 12 || /^TOTAL/'

.PHONY: docs figures
# The site: links and anchors are checked, and that no page fetches anything from elsewhere.
$(VENV)/.docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@touch $@

docs: $(VENV)/.docs  ## the documentation as a site: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

figures: $(READY)   ## draw the figures of the documentation again
	$(BIN)/python -m docs.draw_figures

# The bytes that a refactoring must not change. NAMES selects runs of tests/golden/golden_runs.toml.
golden: $(READY) ## do runs leave the same bytes as at an earlier revision? make golden BASE=REV
	$(BIN)/python tests/golden/golden.py '$(BASE)' $(NAMES)

# The systems that rounds are compared with need other versions of packages, so each has its own environment. If one cannot
# be created, for example without a network, the benchmark reports that and measures the rest.
OTHERS := .venv-flower/.ready .venv-pfl/.ready

.venv-%/.ready: bench/%.txt constraints.txt
	-@$(PYTHON) -m venv .venv-$* \
	&& .venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch \
	&& .venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt -r $< \
	&& touch $@

bench: $(READY) $(OTHERS)  ## speed and memory as ratios, side by side in one run; PARTS=rounds for some of it, AGAINST=REV for before and after
	$(BIN)/python -m bench $(PARTS) $(if $(AGAINST),--against $(AGAINST))

clean:           ## remove the environment and caches
	rm -rf site $(VENV) .venv-flower .venv-pfl .mypy_cache .ruff_cache .import_linter_cache .hypothesis

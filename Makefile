# make help lists the targets. Everything happens inside .venv; nothing else is touched.

# The first interpreter that is new enough and can make a virtual environment.
find_python = for p in python3.11 python3.12 python3.13 python3; do \
    $$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; \
  done
PYTHON ?= $(or $(shell $(find_python)),python3.11)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SITE := book/_build/html
NOTEBOOKS := book/_build/notebooks

# A stamp is as old as the last installation; an edit of pyproject.toml makes it stale.
VENV_STAMP := $(VENV)/.made
BOOK_STAMP := $(VENV)/.installed-book
TEST_STAMP := $(VENV)/.installed-test

# What a chapter reads beside its own text. The execution cache does not look at these.
INPUTS := $(wildcard src results pyproject.toml)
INPUTS_STAMP := book/_build/.inputs
FRAME := $(wildcard book/_config.yml book/_toc.yml book/_ext book/_static book/references.bib)
FRAME_STAMP := book/_build/.frame
DOCTREES := book/_build/.doctrees
frame_sum = find $(FRAME) -type f ! -name '*.pyc' -exec cksum {} + | LC_ALL=C sort | cksum
inputs_sum = find $(INPUTS) -type f ! -name '*.pyc' -exec cksum {} + | LC_ALL=C sort | cksum

# Chapters run on this environment's own kernel, whatever else the user has installed.
export JUPYTER_PREFER_ENV_PATH := 1
export PYDEVD_DISABLE_FILE_VALIDATION := 1

.DEFAULT_GOAL := help
.PHONY: help venv install lint type unit test book check-book browser notebooks results bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

venv: $(VENV_STAMP) ## make .venv
install: $(TEST_STAMP) ## install kvslab with all that the book and the tests need

$(VENV_STAMP):
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(BOOK_STAMP): pyproject.toml | $(VENV_STAMP)
	$(PIP) install --quiet --editable '.[book]'
	@touch $@

$(TEST_STAMP): pyproject.toml | $(VENV_STAMP)
	$(PIP) install --quiet --editable '.[book,test]'
	@touch $@ $(BOOK_STAMP)

lint: $(TEST_STAMP) ## ruff and codespell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

type: $(TEST_STAMP) ## mypy --strict
	$(BIN)/mypy

unit: $(TEST_STAMP) ## pytest, doctests included
	$(BIN)/pytest --numprocesses auto --dist loadfile

test: $(TEST_STAMP) ## everything CI checks: lint, type, unit, check-book, browser
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory type
	$(MAKE) --no-print-directory unit
	$(MAKE) --no-print-directory check-book
	$(MAKE) --no-print-directory browser

# The execution cache is emptied when the library or the results changed; all pages are read and written anew
# when the book's own frame did, so that no page of an earlier run is left over. Else only what changed is built.
# A build that warned leaves nothing, or the next one would pass without reading the page that warned.
# The import lets matplotlib build its font cache now: it may print a message, which a chapter must not.
book: $(BOOK_STAMP) ## run the chapters and build the HTML book
	@sum=$$($(inputs_sum)); \
	if [ "$$sum" != "$$(cat $(INPUTS_STAMP) 2>/dev/null)" ]; then \
	  rm -rf book/_build && mkdir -p book/_build && echo "$$sum" > $(INPUTS_STAMP); \
	fi
	@sum=$$($(frame_sum)); \
	if [ "$$sum" != "$$(cat $(FRAME_STAMP) 2>/dev/null)" ]; then \
	  rm -rf $(SITE) $(DOCTREES) && echo "$$sum" > $(FRAME_STAMP); \
	fi
	@$(BIN)/python -c 'import matplotlib.font_manager'
	@$(BIN)/jupyter-book build -W -n --keep-going book || { rm -rf $(SITE) $(DOCTREES); exit 1; }
	@echo "Open the book: file://$(abspath $(SITE))/index.html"

check-book: book $(TEST_STAMP) ## build the book, then check its links and that it needs no other host
	$(BIN)/python book/check_site.py $(SITE)

# It looks at the book as it was built last; Chromium is the one thing that it does not install.
browser: $(TEST_STAMP) ## open every page of the built book in headless Chromium
	$(BIN)/python book/check_browser.py $(SITE)

# A chapter that fails stops here, with its error as the last line.
notebooks: $(TEST_STAMP) ## run every chapter as a notebook; PARAMETERS="-p backend flashmla" for other ones
	@mkdir -p $(NOTEBOOKS)
	@set -e; for chapter in $(sort $(wildcard book/chapters/*.md)); do \
	  notebook=$(NOTEBOOKS)/$$(basename $$chapter .md).ipynb; \
	  $(BIN)/jupytext --quiet --to ipynb --output $$notebook $$chapter; \
	  $(BIN)/papermill $$notebook $$notebook --cwd book/chapters --no-progress-bar --log-level ERROR $(PARAMETERS); \
	  $(BIN)/python -m kvslab.book $$notebook; \
	  echo "$$notebook"; \
	done

results: $(BOOK_STAMP) ## compute the tables under results/ again
	$(BIN)/kvslab results write

bench: $(TEST_STAMP) ## run every benchmark that this machine can
	@set -e; for script in $(sort $(wildcard benchmarks/*.py)); do \
	  if [ $$script = benchmarks/mxfp4_gpu.py ] && ! command -v nvidia-smi > /dev/null; then \
	    echo "$$script: left out, this machine has no GPU"; continue; \
	  fi; \
	  echo "$$script"; $(BIN)/python $$script; \
	done

clean: ## remove what was built, .venv too
	rm -rf $(VENV) book/_build build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests book benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# make window   one reduced A/B window on this machine (installs what it needs first)
# make test     ruff, mypy --strict and the tests
# make install  only the virtual environment
#
# Needs make and Python 3.11 or newer with venv. PYTHON=... names another interpreter,
# VENV=... another place for the environment, ARGS=... more options for the command.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help install test window clean

VENV ?= .venv
PYTHON ?=
PROFILE ?= cpu
OUT ?= out/window
ARGS ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-input --constraint constraints.txt

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

install: $(INSTALLED)

# The stamp is written last, so an installation that failed half way is done again.
$(INSTALLED): pyproject.toml constraints.txt scripts/make_environment.sh
	@rm -f $(INSTALLED)
	@sh scripts/make_environment.sh "$(VENV)" "$(PYTHON)"
	@echo "Installing pinned packages into $(VENV) (several minutes the first time)"
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation --editable '.[test]'
	@touch $(INSTALLED)

test: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest $(ARGS)

# Exit codes 0 (CANDIDATE) and 10 (INCONCLUSIVE) are verdicts of a window that ran to its end; all others fail.
# The trap keeps this shell alive on Ctrl-C until the window has stopped its ranks.
window: $(INSTALLED)
	@trap : INT; $(BIN)/specbed window rehearse --profile "$(PROFILE)" --out "$(OUT)" $(ARGS); \
	code=$$?; \
	case $$code in 0|10) exit 0 ;; *) exit $$code ;; esac

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

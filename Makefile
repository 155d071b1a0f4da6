# Commands a newcomer meets. Each makes what it needs from a bare Python >= 3.11; `make` lists them.
# Another Python: make reproduce PYTHON=/path/to/python3.12

PYTHON ?= python3
# Programs come from .venv; nothing of the caller's own Python set-up leaks in.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
unexport PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.PHONY: help environment reproduce figures test lint

help: ## show this list
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/make \1@\2/p' $(MAKEFILE_LIST) | awk -F@ '{printf "%-18s %s\n", $$1, $$2}'

# Runs before .venv exists, so it must not find .venv's python3 on the PATH.
environment: ## make .venv from requirements.lock (the others do this by themselves)
	@command -v $(PYTHON) >/dev/null || \
	  { echo "error: there is no $(PYTHON); name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 2; }
	@PATH="$${PATH#$(CURDIR)/.venv/bin:}" $(PYTHON) tools/setup_env.py

reproduce: environment ## smoke suite: train every method, draw all figures into paper_figures/
	@echo "[memopt] running the smoke suite; the same command continues it after any stop"
	snakemake
	@echo "[memopt] done; open paper_figures/README.md"

figures: environment ## draw all figures again from the tables that are there, in git or results/
	PYTHONPATH=notebooks python -m figlib.redraw

test: environment ## run the tests (slow ones: make test ARGS="-m slow")
	pytest -n 2 $(ARGS)

lint: environment ## formatting, style, types, import arrows, Snakemake's own lint
	ruff format --check .
	ruff check .
	snakefmt --check workflow
	mypy
	lint-imports
	snakemake --lint

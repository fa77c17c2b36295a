# A fresh clone needs only make and Python >= 3.11: the first target that needs .venv makes it.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test bench soak lint clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## train a model on 1 and on 2 ranks and compare
	$(BIN)/python examples/demo.py

test: lint ## lint, then every test except the soak (under 15 minutes on 2 cores)
	$(BIN)/python -m pytest -m "not soak" -rs --durations=15

bench: $(READY) ## measure against MPI, torch DDP and gloo, side by side
	$(BIN)/python -m bench

soak: $(READY) ## repeat the fault tests (up to 45 minutes)
	$(BIN)/python -m pytest -m soak --timeout=2700 --durations=15

lint: $(READY) ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/mypy --strict

clean: ## remove .venv and everything else that was made here
	rm -rf .venv build dist out src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

define CHECK_PYTHON
import importlib.util, sys
found = sys.version.split()[0]
if sys.version_info < (3, 11):
    sys.exit(f"Farandole needs Python >= 3.11; $(PYTHON) is {found}. Type: make PYTHON=python3.12 ...")
missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
if missing:
    sys.exit(
        f"$(PYTHON) ({found}) cannot make .venv: it lacks {' and '.join(missing)}. On Debian and Ubuntu type: "
        "apt install python3-venv. Or name another Python: make PYTHON=/path/to/python3 ..."
    )
endef
export CHECK_PYTHON

# --no-build-isolation: the pinned setuptools builds the package, instead of whichever is newest today.
$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found. Type: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -c "$$CHECK_PYTHON"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pip setuptools
	$(BIN)/python -m pip install --quiet --no-build-isolation -c constraints.txt -e ".[torch,keras,tensorflow,jax,mpi,data,loaders,dev]"
	@touch $@

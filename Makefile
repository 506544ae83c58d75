# The two commands to know: `make demo` and `make test`. Each makes .venv on its first run.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BENCH  := runs/bench

FUZZ_SECONDS ?= 600

# Threads that spin while they wait slow each other down where cores are shared; many small processes want one each.
export OMP_WAIT_POLICY ?= passive
pytest slow-test fuzz attack: export OMP_NUM_THREADS ?= 1

# Tests start many processes: bytecode is written once, when a module is first asked for, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test pytest slow-test fuzz attack audit lint bench soak docs clean

demo: $(VENV)/ready
	$(BIN)/python examples/wrong_labels.py
	@echo
	$(BIN)/python examples/early_exits.py
	@echo
	@echo "See the belief after each step: $(BIN)/ric predict pretrained:cifar10 --trace, or in a browser: $(BIN)/ric demo"

# Side by side: mypy works on one core.
test: $(VENV)/ready
	@$(MAKE) --no-print-directory --jobs 2 lint pytest

pytest: $(VENV)/ready
	$(BIN)/pytest -q -n auto --dist worksteal

# Minutes long. Those that learn from real images look for them in $$RICNET_DATA.
slow-test: $(VENV)/ready
	$(BIN)/pytest -q -m slow

# Changed files, settings, flags and requests, as many as come to mind in FUZZ_SECONDS; a failure prints what to repeat.
fuzz: $(VENV)/ready
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/pytest -q -m slow tests/security

# Flipped bits, kills, silent clients, poison rows and files that unpack to gigabytes: ten minutes, and a summary.
attack: $(VENV)/ready
	$(BIN)/pytest -q -m attack tests/security tests/training/test_kills.py

# Known vulnerabilities of what is installed. Needs pip-audit (pip install pip-audit) and the network, else it says so.
audit: $(VENV)/ready
	@PYTHON=$(BIN)/python sh scripts/audit.sh

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# A minute or two on a CPU, six on a GPU, where the sizes are larger and much is compiled.
bench: $(VENV)/ready
	for name in training growth gain imagenet inference; do \
		$(BIN)/python benchmarks/$$name.py --json $(BENCH)/$$name.json || exit 1; \
	done

# Twenty minutes of everything in a loop: does memory stay where it is?
soak: $(VENV)/ready
	$(BIN)/python benchmarks/soak.py

# The documentation as a site, in site/.
docs: $(VENV)/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis $(BENCH)

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[dev]"
	touch $@

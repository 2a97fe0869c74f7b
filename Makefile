# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run setup test check bench chaos pin clean

run: setup ## A short guided tour on the local sandbox
	@scripts/system-packages bubblewrap
	@$(BIN)/python -m remote_sandbox_mcp.cli.tour

setup: $(READY) ## Build .venv with the remote-sandbox-mcp command

$(READY): requirements.txt pyproject.toml
	@scripts/system-packages python3-venv
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

test: setup ## All tests, on real parts
	@scripts/system-packages openssh-server openssh-client tmux rsync bubblewrap busybox fish tcsh zsh dash shellcheck \
		systemd docker.io docker-registry debootstrap iproute2
	@$(BIN)/python -m tests.support.engine
	@$(BIN)/python -m pytest -n 2 --dist loadgroup || { echo "once more, and with nothing beside it: what failed" >&2; \
		$(BIN)/python -m pytest -n 1 --dist loadgroup --last-failed --last-failed-no-failures none; }

check: setup ## Format, lint, types, import contract, shell scripts, tests
	@scripts/system-packages shellcheck
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	git ls-files -z '*.sh' scripts .ci | xargs -0 shellcheck
	@$(MAKE) --no-print-directory test

bench: setup ## Speed against OpenSSH and the published peer, as ratios
	@scripts/system-packages openssh-server openssh-client bubblewrap rsync gcc libc6-dev docker.io debootstrap iproute2
	@$(BIN)/python -m bench $(ARGS)

chaos: setup ## 200 random schedules of faults against jobs, servers and watchdogs; needs root
	@scripts/system-packages openssh-server openssh-client tmux
	@$(BIN)/python -m chaos $(ARGS)

pin: setup ## Write requirements.txt anew
	@$(BIN)/pip install --quiet pip-tools
	@$(BIN)/pip-compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-emit-trusted-host \
		--no-emit-find-links --no-header --no-annotate --strip-extras --allow-unsafe --extra dev \
		--build-deps-for editable --output-file requirements.txt pyproject.toml

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

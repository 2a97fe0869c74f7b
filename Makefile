# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools
# What makes the documentation and the packages, apart from everything else.
PUBLISH := .publish
# `make test ALL=1`: the whole contract also for backends that differ from another only in their line.
WHICH := $(if $(ALL),--all)
# Whatever the environment says: a suite that compiles its tests anew in each worker takes half a minute longer.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest

.PHONY: run tour setup tools quick lint test coverage check clients suites bench screenshots chaos mutations docs packages image release pin clean

run: setup ## The hub, the sandbox on this computer and the page, until Ctrl-C; the tour where nobody looks
	@scripts/system-packages bubblewrap:bwrap
	@$(BIN)/python scripts/demo.py

tour: setup ## A short guided tour on the local sandbox
	@scripts/system-packages bubblewrap:bwrap
	@$(BIN)/python scripts/tour.py

setup: $(READY) ## Build .venv with the remote-sandbox-mcp command

$(READY): requirements.txt pyproject.toml scripts/environment
	@echo "setting up $(VENV) with what the program needs: once, half a minute or less" >&2
	@scripts/environment $(PYTHON) $(VENV) requirements.txt
	@touch $@

tools: $(TOOLS) ## Add what tests and checks need to .venv

$(TOOLS): requirements.txt requirements-dev.txt pyproject.toml scripts/environment
	@echo "setting up $(VENV) with what the program and its tests need: once, a minute or two" >&2
	@scripts/environment $(PYTHON) $(VENV) requirements.txt requirements-dev.txt
	@touch $(READY) $@

test: tools ## All tests, on real parts; what cannot run here is left out, and told at the end
	@scripts/system-packages openssh-server openssh-client tmux rsync bubblewrap busybox fish tcsh zsh dash shellcheck \
		systemd docker.io docker-registry debootstrap e2fsprogs iproute2 slirp4netns curl sudo podman \
		libpam-google-authenticator oathtool git exfat-fuse exfatprogs munge slurmctld slurmd slurm-client slurmdbd mariadb-server-core
	@scripts/system-packages docker-cli:docker
	@scripts/system-packages chromium:chromium
	@$(BIN)/python -m compileall -q src tests
	@# Read all tests once, beside the start of the engine: what pytest makes of them is kept for its workers.
	@$(PYTEST) --collect-only -q >/dev/null & $(BIN)/python -m tests.support.engine && wait
	@$(PYTEST) -n auto --dist loadgroup $(WHICH) || { echo "once more, and with nothing beside it: what failed" >&2; \
		$(PYTEST) -n 1 --dist loadgroup $(WHICH) --last-failed --last-failed-no-failures none --second-try; }

quick: tools ## After each change: format, lint, types, and the tests that start no machine and no container
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@$(PYTEST) --quick -n 4 --dist loadgroup $(ARGS)

lint: tools ## Format, lint, types, import contract, shell scripts: what the hooks of pre-commit run, too
	@scripts/system-packages shellcheck
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	git ls-files -z '*.sh' scripts .ci ':!scripts/*.py' | xargs -0 shellcheck

coverage: tools ## Lines of src that the tests run, by room, and those of a change (BASE=main) that none runs; ARGS=--quick
	@rm -f .coverage .coverage.*
	-@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m coverage run -m pytest -n auto --dist loadgroup $(WHICH) $(ARGS)
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python scripts/uncovered.py $(or $(BASE),HEAD~1)

check: lint test ## What CI runs: lint and tests

clients: tools ## Every tool through the Inspector, SDKs and adapters; Claude Code and Codex in a workspace; axe on the page
	@scripts/system-packages bubblewrap:bwrap
	@scripts/system-packages chromium:chromium
	@$(BIN)/python -m clients $(ARGS)

suites: tools ## Frameworks' own tests of sandboxes on our adapters, in environments of their own; ALL=1 on every kind
	@scripts/system-packages openssh-server openssh-client bubblewrap busybox sudo adduser docker.io debootstrap iproute2 \
		munge slurmctld slurmd slurm-client
	@scripts/system-packages docker-cli:docker
	@ALL=$(ALL) $(BIN)/python scripts/suites.py $(ARGS)

bench: tools ## Speed against OpenSSH and the published peer, as ratios; a whole run writes docs/benchmarks.md
	@scripts/system-packages openssh-server openssh-client bubblewrap rsync git gcc libc6-dev docker.io debootstrap iproute2
	@scripts/system-packages docker-cli:docker
	@mkdir -p build
	@$(BIN)/python -m bench --json build/bench.json $(ARGS)
	@$(if $(ARGS),true,$(BIN)/python -m bench.document build/bench.json)

screenshots: tools ## The pictures of the documentation, from real sessions
	@scripts/system-packages openssh-server openssh-client tmux bubblewrap chromium munge slurmctld slurmd slurm-client \
		fonts-inter fonts-jetbrains-mono fonts-noto-cjk
	@$(BIN)/python -m pictures.workspace
	@$(BIN)/python -m pictures.top
	@$(BIN)/python -m pictures.page

chaos: tools ## 200 random schedules of faults against jobs, hubs with their clients, and leases of GPUs; needs root
	@scripts/system-packages openssh-server openssh-client tmux bubblewrap
	@$(BIN)/python -m chaos $(ARGS)

mutations: tools ## Whether chaos finds the defects of chaos/mutations.py; needs root
	@scripts/system-packages openssh-server openssh-client tmux bubblewrap
	@for name in $$($(BIN)/python -m chaos.mutations); do $(BIN)/python -m chaos --mutation $$name --schedules 6 --seed 1 $(ARGS) || exit 1; done

$(PUBLISH)/.ready: requirements-publish.txt $(TOOLS)
	@echo "setting up $(PUBLISH) with what makes the documentation and the packages: once, half a minute or less" >&2
	@$(BIN)/uv venv --quiet --no-config --clear --python $(BIN)/python $(PUBLISH)
	@$(BIN)/uv pip install --quiet --no-config --python $(PUBLISH)/bin/python --require-hashes -r requirements-publish.txt
	@touch $@

docs: $(PUBLISH)/.ready ## The documentation as a site, in build/site: offline, searched, in English and Chinese
	@$(BIN)/python scripts/documentation.py

packages: $(PUBLISH)/.ready ## Everything that a release consists of, in dist
	@$(BIN)/python scripts/packages.py

image: tools ## A container image (NAME=remote-sandbox-mcp, ARGS for docker build), from pinned wheels
	@scripts/image $(or $(NAME),remote-sandbox-mcp) $(ARGS)

release: $(PUBLISH)/.ready ## A version with everything that belongs to it: make release VERSION=1.1.0
	@$(BIN)/python scripts/release.py $(VERSION)

pin: tools ## Resolve requirements.txt and its two companions anew
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/pin --upgrade

clean:
	rm -rf $(VENV) $(PUBLISH) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .clients-cache .suites-cache

"""Whatever is in the variables and the file, loading never fails and never shows a secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.schema import Configuration, MachineEntry
from remote_sandbox_mcp.config.show import show

HIDDEN = "hunter2-do-not-show"
KEYS = st.sampled_from([*MachineEntry.__dataclass_fields__, "pasword", "keyfile"]) | st.text(max_size=8)
SECRETS = st.sampled_from(
    [HIDDEN, f"literal:{HIDDEN}", f"literal:env:{HIDDEN}", f"command:op {HIDDEN}", f"{HIDDEN}\n\0"]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=20,
)
MACHINE = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(max_size=5) | ANYTHING,
        "host": st.sampled_from(["a", "b", "192.0.2.1", "::1", "x y"]) | ANYTHING,
        "port": st.integers(-1, 70000) | ANYTHING,
        "user": st.text(max_size=5) | ANYTHING,
        "password": SECRETS | st.lists(SECRETS) | st.dictionaries(KEYS, SECRETS),
        "key_passphrase": SECRETS,
        "sudo": SECRETS | ANYTHING,
        "pasword": SECRETS,
        "key_file": st.text(max_size=8) | ANYTHING,
        "jump": st.sampled_from(["a", "b", "a,b", "u@a:1", "::", "@"]) | ANYTHING,
        "ssh_alias": st.sampled_from(["a", "b"]) | ANYTHING,
        "agent": ANYTHING,
        "shell": ANYTHING,
        "init": ANYTHING,
        "env": ANYTHING | st.dictionaries(KEYS, ANYTHING),
        "connect_timeout_s": ANYTHING,
        "strict_host_keys": ANYTHING,
    },
)


def check(configuration: Configuration) -> None:
    for problem in configuration.problems:
        assert problem.endswith(".")
        assert problem.isprintable() or not set(problem) & set("\n\r\0\x1b")
        assert len(problem) < 1200
        problem.encode()
    assert HIDDEN not in f"{configuration}{configuration!r}{json.dumps(show(configuration))}"
    names = [machine.name for machine in configuration.machines]
    assert len(names) == len(set(names))
    assert all(names)
    assert all(type(machine.port) is int and 1 <= machine.port <= 65535 for machine in configuration.machines)


@settings(max_examples=60, deadline=None)
@given(value=ANYTHING | st.lists(MACHINE | ANYTHING, max_size=5))
def test_any_json_in_the_list(value: Any) -> None:
    check(load(environ={"REMOTE_SANDBOX_LIST": json.dumps(value)}))


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=60), machine=MACHINE)
def test_any_text_in_the_list(text: str, machine: dict[str, Any]) -> None:
    broken = json.dumps([machine])[: len(text) * 3]
    check(load(environ={"REMOTE_SANDBOX_LIST": text}))
    check(load(environ={"REMOTE_SANDBOX_LIST": broken + text}))


@settings(max_examples=40, deadline=None)
@given(
    environ=st.dictionaries(
        st.sampled_from(
            [
                *(f"REMOTE_{name}" for name in ("HOST", "PORT", "USER", "KEY_FILE")),
                *("REMOTE_SANDBOX_PATIENCE_S", "REMOTE_SANDBOX_INLINE_SYNC_MAX_FILES"),
            ]
        ),
        st.text(max_size=10),
    )
)
def test_any_text_in_the_variables(environ: dict[str, str]) -> None:
    check(load(environ={**environ, "REMOTE_PASSWORD": HIDDEN, "REMOTE_KEY_PASSPHRASE": HIDDEN}))


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=80) | st.text('[]{}="\\machines.server local#\n1', max_size=80))
def test_any_text_in_the_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path: Path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(f'password = "{HIDDEN}"\n{text}', errors="surrogatepass")
    check(load(path, {}))


@settings(max_examples=40, deadline=None)
@given(entry=MACHINE | ANYTHING)
def test_whatever_stands_beside_it_a_good_machine_works(entry: Any) -> None:
    good = {"name": "good one", "host": "192.0.2.9", "user": "u"}
    configuration = load(environ={"REMOTE_SANDBOX_LIST": json.dumps([good, entry])})
    assert configuration.machines[0].name == "good one"

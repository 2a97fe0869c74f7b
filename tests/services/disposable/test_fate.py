"""What is to become of a sandbox: a table of rows, owners and times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remote_sandbox_mcp.core.sandboxes.disposable import Disposable, DisposableRules
from remote_sandbox_mcp.local.store.disposables import Kept, Owner
from remote_sandbox_mcp.services.disposable.policy import (
    SandboxFate,
    fate,
    is_about_to_expire,
    is_nearly_over,
    is_unused,
    is_visible,
    pause_for,
)

ME, LIVING, DEAD = Owner(1, "a"), Owner(2, "b"), Owner(3, "c")
NOW = 10_000.0


def a_row(
    owner: Owner = ME,
    *,
    pool: str = "",
    idle: float = 0.0,
    timeout_s: float = 600.0,
    configuration: str = "",
    **fields: object,
) -> Kept:
    it = replace(Disposable(id="sb-00000001", provider="opensandbox"), **fields)  # type: ignore[arg-type]
    return Kept(
        disposable=it, owner=owner, pool=pool, idle_since=NOW - idle, timeout_s=timeout_s, configuration=configuration
    )


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        pytest.param(a_row(), SandboxFate.MINE, id="mine"),
        pytest.param(a_row(status="creating"), SandboxFate.MINE, id="mine, being made"),
        pytest.param(a_row(pool="x"), SandboxFate.MINE, id="mine, ready"),
        pytest.param(a_row(status="ending"), SandboxFate.SWEEP, id="mine, being ended"),
        pytest.param(a_row(expires=NOW - 3), SandboxFate.SWEEP, id="mine, expired"),
        pytest.param(a_row(expires=NOW - 1), SandboxFate.MINE, id="mine, expired just now"),
        pytest.param(a_row(expires=NOW - 3, status="creating"), SandboxFate.MINE, id="mine, slow to make"),
        pytest.param(a_row(LIVING), SandboxFate.SHARED, id="another's container"),
        pytest.param(a_row(LIVING, expires=NOW - 3), SandboxFate.SHARED, id="another's to sweep"),
        pytest.param(a_row(LIVING, pool="x"), SandboxFate.THEIRS, id="another's ready one"),
        pytest.param(a_row(LIVING, status="creating"), SandboxFate.THEIRS, id="another is making it"),
        pytest.param(a_row(LIVING, status="ending"), SandboxFate.THEIRS, id="another is ending it"),
        pytest.param(a_row(LIVING, provider="embedded"), SandboxFate.SHARED, id="another's on this machine"),
        pytest.param(a_row(LIVING, configuration="other"), SandboxFate.THEIRS, id="of another configuration"),
        pytest.param(a_row(DEAD), SandboxFate.INHERIT, id="left by one that died"),
        pytest.param(a_row(DEAD, status="paused"), SandboxFate.INHERIT, id="left and paused"),
        pytest.param(a_row(DEAD, expires=NOW - 3), SandboxFate.SWEEP, id="left until it expired"),
        pytest.param(a_row(DEAD, configuration="other"), SandboxFate.THEIRS, id="left, of another configuration"),
        pytest.param(
            a_row(DEAD, configuration="other", expires=NOW - 3), SandboxFate.SWEEP, id="of another one, expired"
        ),
        pytest.param(a_row(DEAD, status="creating"), SandboxFate.SWEEP, id="never made, or not known"),
        pytest.param(a_row(DEAD, pool="x"), SandboxFate.SWEEP, id="ready for nobody"),
    ],
)
def test_fates(kept: Kept, expected: SandboxFate) -> None:
    assert fate(kept, ME, frozenset({ME, LIVING}), NOW, "this") is expected


def test_what_belongs_to_no_configuration_is_seen_by_all_and_the_watchdog_sees_all() -> None:
    assert is_visible(a_row(), "this")
    assert is_visible(a_row(configuration="this"), "this")
    assert not is_visible(a_row(configuration="other"), "this")
    assert is_visible(a_row(configuration="other"), "")


@pytest.mark.parametrize(
    ("kept", "rules", "unused"),
    [
        pytest.param(a_row(idle=1801), DisposableRules(), True, id="idle"),
        pytest.param(a_row(idle=1799), DisposableRules(), False, id="used"),
        pytest.param(a_row(idle=-500), DisposableRules(), False, id="a run goes on"),
        pytest.param(a_row(idle=61), DisposableRules(cleanup_after_minutes=1), True, id="sooner"),
        pytest.param(a_row(idle=1e6), DisposableRules(auto_cleanup=False), False, id="never"),
        pytest.param(a_row(idle=1e6, status="paused"), DisposableRules(), False, id="paused on purpose"),
        pytest.param(a_row(idle=1e6, pool="x"), DisposableRules(), False, id="ready"),
    ],
)
def test_only_what_nobody_uses_is_cleaned_up(kept: Kept, rules: DisposableRules, unused: bool) -> None:
    assert is_unused(kept, rules, NOW) is unused


def test_without_an_end_nothing_is_ever_nearly_over() -> None:
    assert not is_about_to_expire(a_row(), NOW)
    assert not is_nearly_over(a_row(), NOW)
    assert is_about_to_expire(a_row(expires=NOW + 299), NOW)
    assert not is_nearly_over(a_row(expires=NOW + 299), NOW)
    assert is_nearly_over(a_row(expires=NOW + 59), NOW)
    assert not is_nearly_over(a_row(expires=NOW + 59, timeout_s=60.0), NOW)


def test_the_shortest_time_sets_the_pace() -> None:
    assert pause_for(DisposableRules(), []) == 15
    assert pause_for(DisposableRules(), [a_row(timeout_s=20.0), a_row(timeout_s=0.0)]) == 5
    assert pause_for(DisposableRules(cleanup_after_minutes=0.2), []) == 3
    assert pause_for(DisposableRules(), [a_row(timeout_s=0.1)]) == 0.25

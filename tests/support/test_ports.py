from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ports


def test_a_port_that_was_given_is_given_to_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon listens on it only later: until then nothing but the reservation keeps others away."""
    first = ports.free_port()
    # Free, but reserved by nobody any more.
    second = ports.free_port()
    ports._reserved.pop().close()
    monkeypatch.setattr(ports, "_SINGLE", [first, second])
    other = (
        "from tests.support import ports; "
        f"ports._SINGLE = [{first}, {ports._SINGLE[1]}]; "
        "print([ports.free_port() for _ in 'x'])"
    )
    said = subprocess.run(
        [sys.executable, "-c", other], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == f"[{ports._SINGLE[1]}]"


def test_a_block_has_no_port_in_common_with_single_ports() -> None:
    first = ports.free_block()
    assert first != ports.free_block()
    assert ports.free_port() < first

"""A machine that asks for a code, and clients over HTTP whose users fill in a form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mcp.types import ElicitResult

from tests.fronts.http.conftest import connected, service
from tests.support.second_factor import assert_found_nowhere, machine_with_code
from tests.support.server import entry
from tests.support.sshd import Fleet


async def test_a_form_asks_for_the_code_over_http_in_both_eras(fleet: Fleet, tmp_path: Path) -> None:
    factor, forms = machine_with_code(fleet), []

    async def fill_in(context: Any, params: Any) -> ElicitResult:
        forms.append(params)
        return ElicitResult(
            action="accept", content=dict.fromkeys(params.requested_schema["properties"], factor.code())
        )

    with service(tmp_path, entries=(entry(factor.machine),), local=False) as served:
        for number, mode in enumerate(("legacy", "2026-07-28"), 1):
            async with connected(served, mode=mode, elicitation=fill_in) as caller:
                given = {"sandbox_name": factor.machine.name}
                assert await caller.output("whoami", **given) == f"{factor.machine.user}\n", mode
            assert len(forms) == factor.logins == number
            assert_found_nowhere(factor.codes, tmp_path, served.said)
            factor.machine.kill_sessions()
            factor.renew()

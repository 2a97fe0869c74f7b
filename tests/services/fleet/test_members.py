"""A fleet whose members come and go."""

from __future__ import annotations

import pytest

from remote_sandbox_mcp.core.errors import UnknownSandbox
from remote_sandbox_mcp.services.fleet import Fleet
from tests.support.disposable_house import a_machine


def test_a_new_member_is_known_by_its_name_and_its_alias() -> None:
    fleet, member = Fleet([a_machine()]), a_machine("sb-1")
    fleet.add(member, "web")
    assert fleet.member("sb-1") is fleet.member("web") is member
    assert list(fleet.names) == ["gpu1", "sb-1", "web"]
    assert "web" in fleet.names


@pytest.mark.parametrize("name", ["sb-1", "web"])
def test_one_that_goes_is_unknown_by_both(name: str) -> None:
    fleet, member = Fleet([a_machine()]), a_machine("sb-1")
    fleet.add(member, "web")
    assert fleet.remove(name) is member
    assert fleet.remove(name) is None
    for known in ("sb-1", "web"):
        with pytest.raises(UnknownSandbox, match="there are: gpu1"):
            fleet.member(known)


def test_an_alias_never_hides_a_member() -> None:
    fleet = Fleet([a_machine()])
    fleet.add(a_machine("sb-1"), "gpu1")
    assert fleet.member("gpu1").name == "gpu1"


async def test_members_are_offered_once_whatever_they_are_called() -> None:
    fleet = Fleet([a_machine()])
    fleet.add(a_machine("sb-1"), "web")
    assert [member.name for member in await fleet.offered()] == ["gpu1", "sb-1"]


def test_none_named_means_the_default_and_nothing_else() -> None:
    fleet = Fleet([a_machine(), a_machine("gpu2")], "gpu2")
    fleet.add(a_machine("sb-1"), "web")
    assert fleet.member().name == "gpu2"


def test_a_name_that_nobody_has_is_asked_for() -> None:
    fleet, late = Fleet([a_machine()]), a_machine("late")
    fleet.find = lambda name: late if name == "late" else None
    assert fleet.member("late") is late
    with pytest.raises(UnknownSandbox, match="did you mean gpu1"):
        fleet.member("gpu2")

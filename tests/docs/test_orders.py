from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, get_args

import pytest
from typing_extensions import get_type_hints

from remote_sandbox_mcp.backends.ssh import sftp_lane
from remote_sandbox_mcp.core import orders
from remote_sandbox_mcp.far.jobs import work as jobwork
from remote_sandbox_mcp.far.lane import lane
from remote_sandbox_mcp.far.outpost import handover, post
from remote_sandbox_mcp.far.outpost.files import WORKERS
from tests.support.doc_pages import ROOT

PAGE = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## The orders on the wire\n")[2].partition("\n## ")[0]
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", re.M)
ROWS = [{found[0]: found for found in ROW.findall(table)} for table in re.findall(r"(?:^\|.*\|\n)+", SECTION, re.M)]
# Added to WORKERS by programs that are sent later.
LATER = {*jobwork.JOB_VERBS, handover.hand_out_socket.__name__}
# What each order is answered, by its verb.
OUTPOST_ANSWERS = {
    "run": orders.RunAnswer,
    "look": orders.RunAnswer,
    "forget": orders.Nothing,
    "learn": orders.Nothing,
    "read": orders.ReadAnswer,
    "write": orders.WriteAnswer,
    "list": orders.ListAnswer,
    "search": orders.SearchAnswer,
    "job_start": orders.JobStartAnswer,
    "job_look": orders.JobsAnswer,
    "job_list": orders.JobsAnswer,
    "job_wait": orders.JobWaitAnswer,
    "job_stop": orders.JobsAnswer,
    "job_send": orders.Nothing,
    "hand_out_socket": orders.Nothing,
}
LANE_ANSWERS = {
    "look": orders.InspectPathAnswer,
    "scan": orders.ScanAnswer,
    "follow": orders.FollowAnswer,
    "rest": orders.Nothing,
    "bridge": orders.Nothing,
    "send": orders.ProblemsAnswer,
    "part": orders.Nothing,
    "check": orders.CheckAnswer,
    "mark": orders.Nothing,
    "index": orders.Nothing,
    "digests": orders.Nothing,
    "texts": orders.Nothing,
    "blocks": orders.Nothing,
    "receive": orders.ReceiveAnswer,
    "clear": orders.ProblemsAnswer,
    "delete": orders.DeleteAnswer,
    "finish": orders.FinishAnswer,
    "touch": orders.ProblemsAnswer,
    "tidy": orders.TidyAnswer,
    "begin": orders.BeginAnswer,
    "join": orders.Nothing,
    "commit": orders.CommitAnswer,
    "leave": orders.Nothing,
    "index_old": orders.Nothing,
    "partial_blocks": orders.Nothing,
}
SIDES = [
    pytest.param(orders.OutpostOrder, OUTPOST_ANSWERS, {*post.OWN_VERBS, *WORKERS, *LATER}, ROWS[0], id="outpost"),
    pytest.param(orders.LaneOrder, LANE_ANSWERS, set(lane.VERBS), ROWS[1], id="lane"),
]


def verbs_of(union: Any, known: set[str]) -> list[tuple[str, Any]]:
    """Each verb that the far side knows, with its order: some orders have the same shape."""
    pairs = [(verb, order) for order in get_args(union) for verb in get_args(get_type_hints(order)["verb"])]
    return [(verb, order) for verb, order in pairs if verb in known or order is not orders.PlainOrder]


def fields_of(shape: Any) -> str:
    """As the table has them: the optional ones with a question mark."""
    names: Iterable[str] = (name for name in get_type_hints(shape) if name != "verb")
    return ", ".join(f"`{name}{'?' * (name in shape.__optional_keys__)}`" for name in names) or "-"


@pytest.mark.parametrize(("union", "answers", "dispatched", "rows"), SIDES)
def test_types_table_and_far_side_have_the_same_verbs(
    union: Any, answers: dict[str, Any], dispatched: set[str], rows: dict[str, Any]
) -> None:
    typed = [verb for verb, _ in verbs_of(union, dispatched)]
    assert len(typed) == len(set(typed))
    assert set(typed) == set(answers) == dispatched == set(rows)


@pytest.mark.parametrize(("union", "answers", "dispatched", "rows"), SIDES)
def test_the_table_has_the_fields_of_every_order_and_answer(
    union: Any, answers: dict[str, Any], dispatched: set[str], rows: dict[str, Any]
) -> None:
    for verb, order in verbs_of(union, dispatched):
        assert rows[verb][2:4] == (fields_of(order), fields_of(answers[verb])), verb


@pytest.mark.parametrize("rows", ROWS, ids=["outpost", "lane"])
def test_the_table_names_files_that_send_the_order(rows: dict[str, Any]) -> None:
    package = ROOT / "src/remote_sandbox_mcp"
    for verb, _, *_ in rows.values():
        for file in re.findall(r"`(.+?)`", rows[verb][1]):
            places = [package / file, package / "backends/link" / file]
            (found,) = [place for place in places if place.exists()]
            assert f'"verb": "{verb}"' in found.read_text(encoding="utf-8"), (verb, file)


def test_a_lane_over_sftp_knows_no_verb_that_other_lanes_do_not_have() -> None:
    known = sftp_lane.FROM_SOURCE | sftp_lane.TO_TARGET | sftp_lane.LARGE | sftp_lane.PIECES
    assert known | {"look", "scan", "follow", "rest", "receive", "bridge"} == set(lane.VERBS)

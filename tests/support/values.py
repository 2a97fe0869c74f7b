"""What tests want to know of values that the program itself never asks for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from remote_sandbox_mcp.core.suites.suite import TestReport
from remote_sandbox_mcp.core.sync.plan import Plan
from remote_sandbox_mcp.core.sync.tree import Tree, TreeReader


def read_tree(end: dict[str, Any], parts: Iterable[bytes]) -> Tree:
    """A tree from a scan's whole answer. Raises FileProblem."""
    reader = TreeReader(str(end.get("path", "") if isinstance(end, dict) else "")[:1000])
    for part in parts:
        reader.feed(part)
    return reader.finish(end)


def is_empty(plan: Plan) -> bool:
    """Whether there is nothing to do."""
    return not (plan.clear or plan.send or plan.touch or plan.finish or plan.delete_files or plan.delete_folders)


def succeeded(report: TestReport) -> bool:
    return report.complete and not (report.problem or report.failed or report.errors or report.exit_code)

"""Prints what a sync did or would do, or that it began: for people, or as JSON with the fields of the sync tools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from . import streams
from .render import Page, count, one_line, print_json, size, styled, took
from .verb import complain, say

if TYPE_CHECKING:
    from ..core.sandboxes.files import Problem
    from ..core.sync.transfer import Order, Outcome
    from ..local.store.transfers import Transfer
    from ..services.sync.engine import Synchronization

# The most rows on a terminal; a pipe gets all of them.
MOST_ROWS = 500
MOST_SECRETS = 5
STYLES = {"new": "green", "delete": "red", "mode": "dim"}

# Done


def show_outcome(outcome: Outcome, order: Order, as_json: bool) -> None:
    if as_json:
        from ..views.sync_results import outcome_fields

        print_json({"mode": "inline"} | outcome_fields(outcome, order))
        return
    say(*outcome_lines(outcome, order))
    print_problems(outcome.problems, outcome.problem_count)


def outcome_lines(outcome: Outcome, order: Order) -> Iterator[str]:
    """One line for what was done, and one for the rest if there is any."""
    target, time, speed = one_line(str(order.target)), took(outcome.seconds), rate(outcome)
    unchanged, rest = f"{count(outcome.skipped_files, 'file')} unchanged", [*_changes(outcome)]
    if outcome.sent_files or rest:
        verb = "Sent" if order.target.sandbox else "Fetched"
        yield f"{verb} {_amount(outcome)} to {target} in {time}{f', {speed}' if speed else ''}"
        rest = [unchanged, *rest] if outcome.skipped_files else rest
    else:
        yield f"{target} is up to date: {unchanged}; {time}"
    if text := "; ".join(filter(None, (", ".join(rest), left_out(outcome.excluded)))):
        yield text[0].upper() + text[1:]
    yield from secrets_line(outcome)


def secrets_line(outcome: Outcome) -> Iterator[str]:
    """Name what was sent, or would be, under names of secrets; an agent could not send it like this."""
    names = outcome.secrets[:MOST_SECRETS]
    more = outcome.secret_count - len(names)
    if names:
        yield f"With names of secrets: {one_line(', '.join(names))}{f' and {more} more' if more else ''}"


def rate(outcome: Outcome) -> str:
    return f"{size(outcome.bytes / outcome.seconds)}/s" if outcome.bytes and outcome.seconds else ""


def _amount(outcome: Outcome) -> str:
    """Files and bytes; also the bytes that were sent, if those are far fewer."""
    if not outcome.sent_files:
        return "no files"
    wire = f", {size(outcome.wire_bytes)} over the line" if 2 * outcome.wire_bytes < outcome.bytes else ""
    return f"{count(outcome.sent_files, 'file')} ({size(outcome.bytes)}{wire})"


def _changes(outcome: Outcome) -> Iterator[str]:
    if outcome.made_dirs:
        yield f"{count(outcome.made_dirs, 'folder')} made"
    if outcome.deleted_files:
        yield f"{count(outcome.deleted_files, 'file')} deleted"
    if outcome.deleted_dirs:
        yield f"{count(outcome.deleted_dirs, 'folder')} deleted"
    if outcome.problem_count:
        yield count(outcome.problem_count, "problem")


def left_out(names: Iterable[str]) -> str:
    text = ", ".join(names)
    return f"left out by default: {text} (see --no-default-excludes)" if text else ""


def print_problems(problems: Iterable[Problem], total: int) -> None:
    """Print each problem on a line of its own, on standard error."""
    listed = [*problems]
    for problem in listed:
        print(f"{one_line(problem.path)}: {one_line(problem.reason)}", file=streams.stderr())
    if total > len(listed):
        print(f"... and {count(total - len(listed), 'problem')} more", file=streams.stderr())


# Planned


def show_plan(job: Synchronization, as_json: bool) -> None:
    if as_json:
        from ..views.sync_results import preview_fields

        print_json(preview_fields(job))
        return
    assert job.source_tree is not None
    _list([*plan_rows(job)])
    say("; ".join(filter(None, (plan_total(job), left_out(job.source_tree.hits)))), *secrets_line(job.outcome()))
    print_problems(tuple(job.tally.problems), job.tally.problem_count)


def _list(rows: list[tuple[str, str, str]]) -> None:
    """Print a table of bounded length on a terminal, plain lines elsewhere."""
    if not streams.stdout().isatty():
        say(*(f"{action:7} {amount:>9}  {path}" for action, amount, path in rows))
        return
    page = Page()
    shown = islice(rows, MOST_ROWS)
    page.rows(((styled((a, STYLES.get(a, "yellow"))), f"{amount:>9}", path) for a, amount, path in shown), indent=0)
    if len(rows) > MOST_ROWS:
        page.print(styled((f"... and {len(rows) - MOST_ROWS:,} more; through a pipe all are listed", "dim")))


def plan_rows(job: Synchronization) -> Iterator[tuple[str, str, str]]:
    """Action, size and path of each entry of the plan."""
    plan, target = job.plan, job.target_tree
    assert target is not None
    for path in plan.clear:
        yield "delete", "", one_line(path)
    for folder in sorted(item.path for item in plan.finish if item.path not in target.folders):
        yield "new", "", one_line(folder) + "/"
    for item in plan.send:
        yield item.why, size(item.size), one_line(item.path)
    for touched in plan.touch:
        yield "mode", "", one_line(touched.path)
    for path in sorted([*plan.delete_files, *(folder + b"/" for folder in plan.delete_folders)]):
        yield "delete", "", one_line(path)


def plan_total(job: Synchronization) -> str:
    plan, tree = job.plan, job.target_tree
    assert tree is not None
    gone = len(plan.clear) + len(plan.delete_files) + len(plan.delete_folders)
    parts = {
        f"send {count(len(plan.send), 'file')} ({size(plan.bytes)})": plan.send,
        f"make {count(plan.new_folders, 'folder')}": plan.new_folders,
        f"change {count(len(plan.touch), 'mode')}": plan.touch,
        f"delete {gone:,}": gone,
    }
    line = ", ".join(text for text, is_so in parts.items() if is_so)
    if not line and tree.kind == "missing":
        line = f"make {one_line(tree.path)}"
    if not line and plan.finish:
        line = f"set the times of {count(len(plan.finish), 'folder')}"
    unchanged = f"{count(plan.skipped, 'file')} unchanged"
    return f"Would {line}; {unchanged}" if line else f"Nothing to do; {unchanged}"


# Begun


def show_started(transfer: Transfer, as_json: bool) -> None:
    if as_json:
        from ..views.sync_results import started_fields

        print_json(started_fields(transfer))
        return
    order = transfer.order
    say(f"{transfer.number}  {one_line(str(order.source))} -> {one_line(str(order.target))}, in the background")
    if transfer.error:
        complain(transfer.error)
        return
    for action, what in (("wait", "shows how far it is"), ("cancel", "ends it")):
        say(f"  {f'remote-sandbox-mcp transfers {action} {transfer.number}':48}  {what}")

"""Disposable sandboxes, test reports and deployments as tool results."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..core.disposable import Disposable, Limits
from .results import lean, sentence

if TYPE_CHECKING:
    from ..store.runs import RunRecord


def disposable_fields(made: Disposable) -> dict[str, Any]:
    """What create_sandbox says, and status."""
    fields: dict[str, Any] = {"sandbox_id": made.id, "status": made.status}
    fields |= lean(created_at=stamp(made.created), expires_at=stamp(made.expires), name=made.name, image=made.image)
    fields |= {"provider": made.provider, "network": made.network}
    return fields | lean(limits=limit_fields(made.limits), notes=[sentence(note) for note in made.notes])


def limit_fields(limits: Limits) -> dict[str, Any]:
    values = {name: getattr(limits, name) or None for name in ("cpu", "memory_mb", "processes", "disk_mb", "gpus")}
    return lean(**values, told=[sentence(text) for text in limits.told])


def listed_fields(made: Disposable) -> dict[str, Any]:
    """What list_sandboxes says of a container beyond what it says of every sandbox."""
    return lean(
        id=made.id, image=made.image, status=made.status, created_at=stamp(made.created), expires_at=stamp(made.expires)
    )


def stamp(seconds: float) -> str:
    """A time as people and programs read it; nothing for never."""
    return moment(seconds) if seconds else ""


def moment(seconds: float) -> str:
    """A time by ISO 8601, whatever a file system says: years that have no four digits become the nearest that has."""
    within = min(max(seconds, -62135596800.0), 253402300799.0)
    return f"{datetime(1970, 1, 1) + timedelta(seconds=int(within)):%Y-%m-%dT%H:%M:%SZ}".rjust(20, "0")


def log_text(records: Sequence[RunRecord]) -> str:
    """The last commands of a sandbox, oldest first."""
    parts = [
        f"[{stamp(record.created)}] {record.outcome or record.state} after {record.seconds:.1f} s\n"
        f"$ {record.command}\n{record.tail}".rstrip()
        for record in records
    ]
    return "\n\n".join(parts) or "nothing was run here lately"

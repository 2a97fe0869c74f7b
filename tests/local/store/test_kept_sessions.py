"""Sessions that keep their state between calls, as rows."""

from __future__ import annotations

from pathlib import Path

from remote_sandbox_mcp.local.store.database import Database
from remote_sandbox_mcp.local.store.sessions import KeptSession, KeptSessionRows


def test_sessions_are_noted_listed_removed_and_pruned(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db")
    shells, pythons = KeptSessionRows(database, "shell"), KeptSessionRows(database, "python")
    main = KeptSession(kind="shell", sandbox="gpu1", name="main", folder="/work", used=10.0)
    roots = KeptSession(kind="shell", sandbox="gpu1", name="main", as_root=True, used=20.0)
    other = KeptSession(kind="shell", sandbox="gpu2", name="main", folder="/odd\udcff", used=5.0)
    for session in (
        main,
        roots,
        other,
        KeptSession(kind="shell", sandbox="gpu1", name="main", folder="/w2", used=30.0),
    ):
        shells.note(session)
    pythons.note(KeptSession(kind="python", sandbox="gpu1", name="main", used=1.0))
    assert [(it.sandbox, it.as_root, it.folder, it.used) for it in shells.list()] == [
        ("gpu1", False, "/w2", 30.0),
        ("gpu1", True, "", 20.0),
        ("gpu2", False, "/odd\ufffd", 5.0),
    ]
    shells.remove("gpu1", "main")
    assert ([it.sandbox for it in shells.list()], shells.list("gpu1"), len(pythons.list())) == (["gpu2"], (), 1)
    shells.prune(6.0)
    assert shells.list() == ()
    database.close()

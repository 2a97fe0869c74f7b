"""sqlite3, imported with the first name that is used: that costs milliseconds, and most calls need no database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3 as sqlite3
else:

    class Library:
        def __getattr__(self, name: str) -> Any:
            import sqlite3

            return getattr(sqlite3, name)

    sqlite3 = Library()

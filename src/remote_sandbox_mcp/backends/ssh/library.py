"""asyncssh, imported with the first name that is used: a start must not wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncssh as asyncssh
else:

    class Library:
        def __getattr__(self, name: str) -> Any:
            import asyncssh

            return getattr(asyncssh, name)

    asyncssh = Library()

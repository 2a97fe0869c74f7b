"""Stands for asyncssh, and imports it with the first name that is used: a start must not wait for it."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import asyncssh

    return getattr(asyncssh, name)

"""Loading the SDK without making what a session may never use."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, UnionType
from typing import Any, Union, get_origin


def load(module: str) -> ModuleType:
    """A module of this package, with the SDK."""
    with validators_made_when_used():
        return importlib.import_module(module, __package__)


@contextmanager
def validators_made_when_used() -> Iterator[None]:
    """Models that are defined meanwhile get their validators with their first use.

    The SDK defines some hundreds of models, for every message of every version of the protocol, and a session uses few.
    """
    from pydantic import BaseModel, TypeAdapter

    usual, make = BaseModel.model_config, TypeAdapter.__init__

    def make_later(self: Any, type: Any, *, config: Any = None, _parent_depth: int = 2, **more: Any) -> None:
        # Others have a configuration of their own, and may be given none.
        if config is None and get_origin(type) in (Union, UnionType):
            config = {"defer_build": True}
        make(self, type, config=config, _parent_depth=_parent_depth + 1, **more)

    BaseModel.model_config = {**usual, "defer_build": True}
    TypeAdapter.__init__ = make_later  # type: ignore[method-assign]
    try:
        yield
    finally:
        BaseModel.model_config = usual
        TypeAdapter.__init__ = make  # type: ignore[method-assign]

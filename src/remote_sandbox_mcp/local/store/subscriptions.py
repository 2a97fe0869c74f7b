"""Clients over HTTP that have subscribed to events, each in a file of its own because it holds a key."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ...core.jobs.watch import WAKING, Event, Watch
from .keeping import TrueTexts

# The folder of the subscriptions, and how a channel begins on which one of them is announced.
FOLDER, CHANNEL = "subscriptions", "subscriber:"
# The one event that there is, and how the key of a subscriber begins.
EVENT, KEY = "background_job", "whsec_"


@dataclass(frozen=True, kw_only=True)
class Subscription:
    """A wish to be sent the events of one job, or of all jobs of a configuration, until it expires."""

    number: int
    url: str = field(repr=False)
    secret: str = field(repr=False)
    watch_id: int | None
    configuration: str
    expires: float

    @property
    def id(self) -> str:
        return f"sub_{self.number:x}"

    @property
    def channel(self) -> str:
        return f"{CHANNEL}{self.number:x}"

    def wants(self, watch: Watch, event: Event) -> bool:
        is_meant = watch.configuration == self.configuration and self.watch_id in (None, watch.id)
        return is_meant and event.type in WAKING and time.time() < self.expires


class Subscriptions:
    """The subscriptions, each in a file that only its owner can read."""

    def __init__(self, state_folder: Path) -> None:
        self._texts = TrueTexts(state_folder / FOLDER)

    def channels(self, watch: Watch, event: Event) -> list[str]:
        """The channels on which an event is announced to subscribers."""
        return [each.channel for each in self.all() if each.wants(watch, event)]

    def all(self) -> Iterator[Subscription]:
        yield from filter(None, map(self.get, self._texts.numbers()))

    def get(self, number: int) -> Subscription | None:
        # A file of a later version is left alone: it must not keep the watchdog from writing events.
        with suppress(TypeError):
            return Subscription(**self._texts.get(number))
        return None

    def put(self, subscription: Subscription) -> None:
        self._texts.put(subscription.number, asdict(subscription))

    def drop(self, number: int) -> None:
        self._texts.drop(number)

    def prune(self) -> None:
        """Drop those that have expired."""
        for old in [each for each in self.all() if each.expires <= time.time()]:
            self.drop(old.number)

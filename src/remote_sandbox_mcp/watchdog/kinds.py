"""The kinds of service that the watchdog can be, and what each of them can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["launchd", "systemd", "hub"]


def which(platform: str, has_systemd_user: bool, has_launchd: bool) -> Kind:
    """Which kind of service serves here."""
    if platform == "darwin" and has_launchd:
        return "launchd"
    return "systemd" if platform.startswith("linux") and has_systemd_user else "hub"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a service manager says of the watchdog; `lingering` is None where there is no such thing."""

    enabled: bool = False
    active: bool = False
    pid: int = 0
    lingering: bool | None = None


class Service(Protocol):
    """One kind of service. What cannot be done is raised as SandboxError."""

    kind: str

    def is_installed(self) -> bool:
        """Whether it starts by itself; known without asking anybody."""
        ...

    async def install(self, start_now: bool) -> None: ...

    async def start(self) -> None: ...

    async def remove(self) -> None: ...

    async def facts(self) -> Facts: ...

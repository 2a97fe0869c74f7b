"""`hosts`: the host keys that we remember, and forgetting those of a machine that was reinstalled."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..config import paths
from ..config.load import load
from ..config.machines import completed
from ..config.schema import Configuration
from ..core.errors import UnknownSandbox
from ..core.sandboxes.machine import Hop
from .render import Page, print_json
from .verb import add_json, say


@dataclass(frozen=True)
class Remembered:
    """One line of our own known_hosts, and the machines that it belongs to."""

    host: str
    type: str
    fingerprint: str
    machines: tuple[str, ...]


@dataclass(frozen=True)
class KnownHost:
    """A host on the way to a machine, as known_hosts names it; `files` are other known_hosts files that may have it."""

    host: str
    port: int
    files: tuple[str, ...] = ()

    @property
    def entry(self) -> str:
        from ..backends.ssh.host_keys import entry_name

        return entry_name(self.host, self.port)


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "hosts",
        description="Lists or forgets the host keys that were accepted when first seen. Without an action, lists them.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    forget = actions.add_parser("forget", help="forget the host keys of a machine and of its jump hosts")
    forget.add_argument("name", metavar="NAME", help="a machine, or a host as `hosts list` shows it")
    listing = actions.add_parser("list", help="the host keys that were accepted when first seen")
    add_json(parser, forget, listing)


async def run(options: argparse.Namespace) -> int:
    configuration, own = completed(load(options.config)), paths.known_hosts_file()
    if options.action == "forget":
        return _forget(configuration, own, options.name, options.json)
    return _list(configuration, own, options.json)


def places(configuration: Configuration) -> Iterator[tuple[str, KnownHost]]:
    """List each machine's name with the hosts on the way to it, itself first."""
    from ..backends.ssh.host_keys import USUAL_FILES

    for machine in configuration.machines:
        # Without files of its own, a machine is looked up where OpenSSH looks.
        files = machine.known_hosts_files or USUAL_FILES
        target = Hop(machine.host, machine.port, host_key_name=machine.host_key_name)
        for hop in (target, *machine.hops):
            yield machine.name, KnownHost(hop.host_key_name or hop.host, hop.port, tuple(files))
            # OpenSSH's client remembers a HostKeyAlias without its port.
            if hop.host_key_name and hop.port != 22:
                yield machine.name, KnownHost(hop.host_key_name, 22, tuple(files))


def remembered(own: Path, configuration: Configuration) -> list[Remembered]:
    """Content of our own file; unreadable lines are skipped."""
    lines = own.read_text(errors="replace").splitlines() if own.exists() else []
    users: dict[str, list[str]] = {}
    for name, place in places(configuration):
        users.setdefault(place.entry, []).append(name)
    parsed = (line.split(" ", 1) for line in lines if " " in line)
    return [Remembered(host, *_describe(key), tuple(users.get(host, ()))) for host, key in parsed]


def _describe(key: str) -> tuple[str, str]:
    import asyncssh

    try:
        return key.split(" ")[0], asyncssh.import_public_key(key).get_fingerprint()
    except asyncssh.KeyImportError:
        return "unreadable", ""


def _list(configuration: Configuration, own: Path, as_json: bool) -> int:
    found = remembered(own, configuration)
    if as_json:
        print_json({"file": str(own), "hosts": [asdict(entry) for entry in found]})
        return 0
    page = Page()
    page.rows([("remembered in", str(own))], indent=0)
    rows = ((entry.host, ", ".join(entry.machines), entry.type, entry.fingerprint) for entry in found)
    page.rows(rows)
    if not found:
        page.print("No host key was accepted yet; those in ~/.ssh/known_hosts are used as they are.")
    return 0


def _forget(configuration: Configuration, own: Path, name: str, as_json: bool) -> int:
    """Raises UnknownSandbox for a name that is neither a machine nor a remembered host."""
    wanted = _wanted(configuration, own, name)
    dropped = _drop(wanted, own)
    commands = [*_elsewhere(wanted, own)]
    if as_json:
        print_json({"name": name, "forgotten": dropped, "also_known_elsewhere": commands})
        return 0
    say(_summary(name, dropped))
    if commands:
        say("It is also known in files that are yours, which are left alone. If the key has changed, run:")
        say(*(f"  {command}" for command in commands))
    return 0


def _wanted(configuration: Configuration, own: Path, name: str) -> list[KnownHost]:
    found = [place for machine, place in places(configuration) if machine == name]
    entries = {entry.host for entry in remembered(own, configuration)}
    # A machine's name wins over a remembered host of the same name.
    if not found and name in entries:
        found = [_place(name)]
    if not found:
        names = ", ".join([*(machine.name for machine in configuration.machines), *sorted(entries)]) or "none"
        raise UnknownSandbox(f"no SSH machine or remembered host is named {name[:80]!r}; there are: {names}")
    return found


def _place(entry: str) -> KnownHost:
    """A host as known_hosts names it: `host`, or `[host]:port`."""
    host, _, port = entry.removeprefix("[").rpartition("]:")
    return KnownHost(host, int(port)) if host and port.isdigit() else KnownHost(entry, 22)


def _drop(wanted: Iterable[KnownHost], own: Path) -> list[str]:
    from ..backends.ssh.host_keys import HostKeys

    keys = HostKeys(own)
    return [place.entry for place in wanted if keys.forget(place.host, place.port)]


def _elsewhere(wanted: Iterable[KnownHost], own: Path) -> Iterator[str]:
    """Commands that remove the hosts from the user's and the system's own files."""
    from ..backends.ssh.host_keys import HostKeys

    for place in wanted:
        for file in HostKeys(own, place.files).elsewhere(place.host, place.port):
            path = Path(file).expanduser()
            # Files outside of the home folder are the system's.
            is_ours = path.is_relative_to(Path.home())
            yield ("" if is_ours else "sudo ") + shlex.join(["ssh-keygen", "-R", place.entry, "-f", str(path)])


def _summary(name: str, dropped: list[str]) -> str:
    if not dropped:
        return f"No host key of {name} was remembered."
    return f"Forgotten: {', '.join(dropped)}. The key that {name} shows next is remembered again."

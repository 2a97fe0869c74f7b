"""The browser of the person at this terminal, and the files that lead it to the page."""

from __future__ import annotations

import contextlib
import html
import os
import secrets
import subprocess
import sys
import webbrowser
from typing import TYPE_CHECKING

from ..local.processes.programs import find_chosen, find_helper

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# Files that lead a browser to the page.
LEADS = "open-page-*.html"
# They would take the terminal.
TEXT_BROWSERS = frozenset({"www-browser", "links", "elinks", "lynx", "w3m"})
SSH_VARIABLES = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")
# Programs that start the browser of the desktop's settings.
OPENERS = frozenset({"xdg-open", "gio", "gvfs-open"})
OPENER_ANSWERS_S = 2.0
# In scripts and desktop files that start a snap or a flatpak, and in the paths of such scripts.
STARTS_CONFINED = (b"/snap/bin/", b"flatpak run")
CONFINED_FOLDERS = ("/snap/", "/flatpak/")
# Where snapd and flatpak put their desktop files, besides the folders that the environment names.
MORE_DATA = ("/var/lib/snapd/desktop", "/var/lib/flatpak/exports/share", "~/.local/share/flatpak/exports/share")


def browser_here(environ: Mapping[str, str]) -> webbrowser.BaseBrowser | None:
    """A browser with windows that shows them to the person at this terminal; None where there is none."""
    if any(environ.get(name) for name in SSH_VARIABLES):
        return None
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return None
    if sys.platform != "darwin":
        # By its path: the library would look it up in PATH once more.
        found.name = find_chosen(name_of(found))
        if not found.name:
            return None
    return None if os.path.basename(name_of(found)) in TEXT_BROWSERS else found


def name_of(browser: webbrowser.BaseBrowser) -> str:
    return str(getattr(browser, "name", ""))


# Snaps and flatpaks


def is_confined(program: str, environ: Mapping[str, str]) -> bool:
    """Whether this browser is known to be a snap or a flatpak, which reads no hidden folder."""
    if os.path.basename(program) in OPENERS:
        return any(_starts_confined(file) for file in _desktop_file(environ))
    found = find_chosen(program, environ.get("PATH")) or program
    return any(part in found for part in CONFINED_FOLDERS) or _starts_confined(os.path.realpath(found))


def _starts_confined(file: str) -> bool:
    with contextlib.suppress(OSError), open(file, "rb") as opened:
        text = opened.read(1 << 16)
        is_text = text.startswith(b"#!") or file.endswith(".desktop")
        return is_text and any(mark in text for mark in STARTS_CONFINED)
    return False


def _desktop_file(environ: Mapping[str, str]) -> Iterator[str]:
    """The desktop file of the program that opens HTML files, if it is found."""
    query = [find_helper("xdg-mime"), "query", "default", "text/html"]
    try:
        done = subprocess.run(query, capture_output=True, timeout=OPENER_ANSWERS_S, env=dict(environ), check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    name = os.path.basename(done.stdout.decode("utf-8", "replace").strip())
    folders = [environ.get("XDG_DATA_HOME") or "~/.local/share"]
    folders += (environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(":")
    for folder in (*folders, *MORE_DATA):
        file = os.path.join(os.path.expanduser(folder), "applications", name)
        if name and os.path.isfile(file):
            yield file
            return


# Files that lead a browser to the page


def write_lead(state: Path, address: str, home: Path | None = None) -> Path:
    """A file of the owner's alone that leads a browser to the page: arguments of programs are visible to all users.

    With `home` it is in that folder, for a browser that cannot read the state folder.
    """
    name = LEADS.replace("*", secrets.token_hex(16))
    lead = state / name
    if home is not None:
        # By this link it is found again, and removed.
        lead.symlink_to(home / f"remote-sandbox-mcp-{name}")
        lead = home / f"remote-sandbox-mcp-{name}"
    target = html.escape(address, quote=True)
    text = (
        '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
        f'<meta http-equiv="refresh" content="0; url={target}"><title>remote-sandbox-mcp</title>'
    )
    with open(os.open(lead, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as opened:
        opened.write(text)
    return lead


def sweep(state: Path, before: float) -> None:
    """Remove the files that led a browser to the page, also those of earlier processes."""
    for lead in state.glob(LEADS):
        with contextlib.suppress(OSError):
            if lead.lstat().st_mtime < before:
                if lead.is_symlink():
                    lead.resolve().unlink(missing_ok=True)
                lead.unlink()

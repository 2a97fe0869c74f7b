"""`dashboard`: a page in the browser that shows what goes on, until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..config import paths
from ..core.errors import ConfigError
from ..local.files import write_private
from ..local.processes.locks import Lock, holder
from .browser import browser_here, is_confined, name_of, sweep, write_lead
from .main import port
from .serve import configured, forget_key, leave_on_signal, serve_http
from .verb import add_json, complain, say

if TYPE_CHECKING:
    import webbrowser

    from ..fronts.http.listener import Terms

HOST = "127.0.0.1"
# While one runs: its lock, and where it listens, with what configuration and which key.
LOCK_FILE, PLACE_FILE = "dashboard.lock", "dashboard.json"
# How long a file that leads a browser to the page stays, and how often old ones are looked for.
LEAD_S, SWEEP_S = 30.0, 10.0
# How long a dashboard that has just begun may take to say where it listens.
BEGINNING_S = 3.0


def add_arguments(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "dashboard",
        description="Opens a page that shows machines, jobs and their logs, sandboxes, workspaces and what agents do, "
        "and serves it on 127.0.0.1 until Ctrl-C. A dashboard that runs already with the same configuration is opened "
        "again.",
    )
    parser.add_argument("--no-open", action="store_true", help="only print the address")
    fields = "a port that stays the same (default: another free one each time)"
    parser.add_argument("--port", type=port, default=0, metavar="N", help=fields)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal ends the process; returns only where there is nothing to serve. Raises ConfigError."""
    from ..fronts.http.listener import agree, listen

    configuration, state = configured(options.config).current, paths.state_folder()
    http = replace(configuration.settings.http, host=HOST, port=options.port)
    terms = agree(http, state)
    forget_key()
    config = os.path.realpath(os.path.expanduser(options.config or paths.config_file()))
    wanted = DashboardAddress(options.port, config, _digest(terms))
    try:
        lock = Lock.take(state / LOCK_FILE)
    except BlockingIOError:
        return _open_again(state, wanted, terms, options)
    # At a port that is the same each time, another user of this computer can serve something while none of ours runs,
    # and a browser that opens a restored tab keeps it for the address of the next one.
    with listen(HOST, options.port) as listener:
        port = listener.getsockname()[1]
        _note(lock, state, replace(wanted, port=port))
        # Python drops a KeyboardInterrupt that comes while a module is loaded, and Ctrl-C would end nothing.
        leave_on_signal()
        _show(state, terms, port, options)
        threading.Thread(target=_keep_sweeping, args=(state,), daemon=True).start()
        serve_http(listener, terms, configuration, options.config)
    return 0


@dataclass(frozen=True)
class DashboardAddress:
    """Address of a dashboard, its configuration, and a digest of its key. As wanted, port 0 is any."""

    port: int
    config: str
    key: str

    def difference(self, wanted: DashboardAddress) -> str:
        """Describe the difference from the address that is wanted; empty where this one will do."""
        if self.config != wanted.config:
            return f"of another configuration, {self.config},"
        if self.key != wanted.key:
            return "with another key"
        return f"at another port, {self.port}," if wanted.port not in (0, self.port) else ""


def _digest(terms: Terms) -> str:
    assert terms.key is not None
    return hashlib.sha256(f"dashboard\0{terms.key.reveal()}".encode()).hexdigest()


def _note(lock: Lock, state: Path, place: DashboardAddress) -> None:
    """Say where it listens, for another `dashboard` that is to open this one."""
    lock.sign()
    write_private(state / PLACE_FILE, json.dumps({"pid": os.getpid(), **asdict(place)}))


def _open_again(state: Path, wanted: DashboardAddress, terms: Terms, options: argparse.Namespace) -> int:
    """Open the one that runs, if it is the wanted one. Raises ConfigError where it does not say where."""
    pid, runs = _running(state)
    if different := runs.difference(wanted):
        complain(
            f"a dashboard {different} runs already, as process {pid}, and there is only one at a time. End it with "
            f"Ctrl-C in its terminal or with: kill {pid}. Then try again."
        )
        return 1
    _show(state, terms, runs.port, options, running=pid)
    return 0


def _running(state: Path) -> tuple[int, DashboardAddress]:
    """The process of the one that runs, and its place. Raises ConfigError."""
    deadline = time.monotonic() + BEGINNING_S
    while time.monotonic() < deadline:
        found = holder(state / LOCK_FILE)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            fields = json.loads((state / PLACE_FILE).read_text(encoding="ascii"))
            if found and found.pid == fields["pid"]:
                return found.pid, DashboardAddress(int(fields["port"]), str(fields["config"]), str(fields["key"]))
        time.sleep(0.05)
    raise ConfigError("a dashboard is just beginning or ending; try again in a moment.")


def _show(state: Path, terms: Terms, port: int, options: argparse.Namespace, running: int = 0) -> None:
    """Print the address, which has the key in it, and open it where there is a browser."""
    assert terms.key is not None
    page = f"http://{HOST}:{port}/ui/"
    address = f"{page}#key={quote(terms.key.reveal(), safe='')}"
    browser = None if options.no_open else browser_here(os.environ)
    if options.json:
        fields = {"url": address, "page": page, "port": port, "pid": running or os.getpid(), "running": bool(running)}
        say(json.dumps(fields))
    else:
        say(address)
        complain(*_hints(port, running, is_opened=browser is not None))
    sys.stdout.flush()
    if browser is not None:
        lead = write_lead(state, address, _home_for(browser))
        threading.Thread(target=_open, args=(browser, lead), daemon=not running).start()


def _home_for(browser: webbrowser.BaseBrowser) -> Path | None:
    """The home folder for a browser that reads no hidden folder, if something can be put there."""
    if not is_confined(name_of(browser), os.environ):
        return None
    home = Path(os.path.expanduser("~"))
    return home if home.is_dir() and os.access(home, os.W_OK) else None


def _hints(port: int, running: int, *, is_opened: bool) -> list[str]:
    runs = f"it runs already, as process {running}" if running else "Ctrl-C ends it"
    if is_opened:
        return [f"the page opens in the browser; {runs}", "if the browser shows an error, open that address by hand"]
    return [
        f"open that address in a browser on this computer; {runs}",
        f"from another computer: ssh -L {port}:{HOST}:{port} THIS_COMPUTER, then open the same address there",
    ]


def _open(browser: webbrowser.BaseBrowser, lead: Path) -> None:
    # That it cannot be started is no error: the address was printed.
    with contextlib.suppress(Exception):
        browser.open(lead.as_uri())


def _keep_sweeping(state: Path) -> None:
    while True:
        sweep(state, time.time() - LEAD_S)
        time.sleep(SWEEP_S)

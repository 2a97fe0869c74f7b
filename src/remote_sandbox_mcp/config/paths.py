"""Paths of our own files: the state folder, the user's config.toml, our known_hosts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

# Every front loads this and stays as long as its client, so it must stay small.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

APP = "remote-sandbox-mcp"
# A project's own file, in its top folder.
WORKSPACE_FILE = ".remote-sandbox.toml"
PROJECT_FILE = "config.json"
# The record of what a user has accepted of projects.
ACCEPTED = "accepted-projects.json"
HOME = "REMOTE_SANDBOX_MCP_HOME"
# If set to anything, each client gets its own process instead of the hub.
NO_HUB = "REMOTE_SANDBOX_NO_HUB"


def config_file() -> Path:
    """The user's configuration file, whether or not it exists."""
    from pathlib import Path

    if sys.platform == "linux":
        # Same result as platformdirs, which would be slow to import.
        given = os.environ.get("XDG_CONFIG_HOME", "")
        folder = os.path.join(given if os.path.isabs(given) else "~/.config", APP)
    else:
        import platformdirs

        folder = platformdirs.user_config_dir(APP, appauthor=False)
    return Path(_from_home(folder)) / "config.toml"


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder for our state, created private to the owner. Raises ConfigError."""
    folder = state_path(environ)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        from ..core.errors import ConfigError

        reason = error.strerror or type(error).__name__
        raise ConfigError(
            f"unable to make the state folder {folder}: {reason}. Set {HOME} to a folder that can be written."
        ) from error
    return folder


def installation(environ: Mapping[str, str] = os.environ) -> str:
    """A random id of this user's installation; made once. Raises ConfigError."""
    file = state_folder(environ) / "installation"
    try:
        # The first process writes it; all others read that.
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "w") as opened:
            opened.write(os.urandom(8).hex())
    except FileExistsError:
        pass
    except OSError as error:
        from ..core.errors import ConfigError

        raise ConfigError(f"unable to write {file}: {error.strerror or error}") from error
    return file.read_text().strip()


def known_hosts_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where we remember host keys that were accepted on first use."""
    return state_folder(environ) / "known_hosts"


def state_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the state folder is, whether or not it exists."""
    from pathlib import Path

    return Path(state_text(environ))


def state_text(environ: Mapping[str, str] = os.environ) -> str:
    """Return the state folder as a string."""
    if given := environ.get(HOME):
        return _from_home(given)
    if sys.platform == "linux":
        # Same result as platformdirs, which would be slow to import.
        usual = os.environ.get("XDG_STATE_HOME", "").strip() or "~/.local/state"
        return _from_home(os.path.join(usual, APP))
    import platformdirs

    return _from_home(platformdirs.user_state_dir(APP, appauthor=False))


def from_folder(path: str, environ: Mapping[str, str]) -> str:
    """A path from the operator's variables; a relative one starts in the folder of the process that has them."""
    path = os.path.expanduser(path)
    return path if os.path.isabs(path) else os.path.join(getattr(environ, "folder", ""), path)


def _from_home(path: str) -> str:
    """A folder named by a variable. A relative one does not start in the current folder: a project could supply it."""
    return os.path.abspath(os.path.join(os.path.expanduser("~"), os.path.expanduser(path)))

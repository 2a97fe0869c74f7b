"""`python -m remote_sandbox_mcp`: the same as the remote-sandbox-mcp command."""

# These two are loaded before anything of ours; whatever else is imported here could come from the current folder.
import os
import sys


def run() -> int:
    """The command, without what `python -m` adds: it looks for modules in the current folder before all others."""
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if sys.path[:1] == [_current_folder()] != [ours]:
        del sys.path[0]
    from .cli.main import main

    return main()


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    raise SystemExit(run())

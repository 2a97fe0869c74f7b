"""The remote-sandbox-mcp command: without a verb it serves MCP; each verb has a file of its own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence

# What only verbs need is imported there: starting a server imports nothing else, not even typing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

WINDOWS = (
    "remote-sandbox-mcp: it does not run on Windows itself; install it in WSL (wsl --install), "
    "and give your client the command: wsl remote-sandbox-mcp"
)

# Each verb and what it is for.
VERBS = {
    "setup": "find machines, write config.toml, register with your clients",
    "doctor": "check each machine step by step",
    "import": "take over what remote-sandbox-mcp 0.x has left",
    "sandboxes": "list the sandboxes, and how busy they are",
    "top": "the fleet and its jobs, live",
    "dashboard": "what goes on, as a page in the browser",
    "exec": "run a command in a sandbox",
    "shell": "an interactive shell in a sandbox",
    "jobs": "work in the background, on any machine",
    "sessions": "shells and Pythons that keep their state",
    "push": "copy files to a sandbox",
    "pull": "copy files from a sandbox",
    "transfers": "syncs in the background",
    "link": "edit here, run there: bind a folder to one of a sandbox",
    "unlink": "end a link; both sides keep their files",
    "workspaces": "the linked folders, and whether both sides are in step",
    "create": "make a disposable sandbox; prints its id",
    "delete": "end disposable sandboxes",
    "clean": "remove what was left on a machine",
    "forward": "bring a port of a sandbox to this computer",
    "events": "what happened to watched jobs, newest last",
    "calls": "what agents have done: every tool call, newest last",
    "usage": "GPU-hours: who used the machines' GPUs, and for how long",
    "allow": "let agents use a folder or file of this computer",
    "disallow": "take back what was allowed",
    "watchdog": "the process that monitors background jobs",
    "hub": "the process that serves all clients",
    "login": "log in to a machine that asks for a code",
    "platform": "an OpenSandbox server on your Docker engine",
    "hosts": "host keys that are remembered",
    "config": "the configuration, and where it comes from",
    "completion": "a script that completes words in bash, zsh or fish",
    "hook": "for clients: whether their agent may run a command here",
}
# Verbs that the hub carries out, with its connections.
BY_HUB = frozenset(
    {
        *("exec", "shell", "jobs", "sandboxes", "sessions", "create", "delete", "clean", "events", "calls", "top"),
        *("forward", "push", "pull", "transfers", "link", "unlink", "workspaces", "usage"),
    }
)
# Verbs whose file is named after another one.
SHARED = {
    **{"push": "syncing", "pull": "syncing", "create": "disposables", "delete": "disposables", "shell": "attach"},
    **{"events": "records", "calls": "records", "link": "workspaces", "unlink": "workspaces"},
    **{"disallow": "allow", "import": "taking_over"},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; operator mistakes print a sentence (exit 2), defects print a stack (exit 1)."""
    if sys.platform == "win32":
        print(WINDOWS, file=sys.stderr)
        return 2
    arguments = list(sys.argv[1:] if argv is None else argv)
    if (code := _answered_at_once(arguments)) is not None:
        return code
    if not any(word in VERBS for word in arguments):
        # A server that is told to end while it starts has not failed.
        from .serve import leave_on_signal

        leave_on_signal()
    if (plain := _plain_server(arguments)) and not sys.stdin.isatty():
        from . import serve

        return serve.run(plain[0], hub=plain[1])
    verb = verb_of(arguments)
    understood = parser((verb,) if verb else (), as_json="--json" in arguments)
    options = understood.parse_args(arguments)
    if options.verb is not None:
        return _run_verb(options)
    if options.json:
        understood.error("--json goes with a verb")
    if options.mode == "http":
        return _serve_http(options)
    if options.host or options.port is not None or options.no_auth:
        understood.error("--host, --port and --no-auth go with --mode http")
    # A person started it by hand: clients give it pipes.
    if sys.stdin.isatty():
        import asyncio

        from .welcome import show

        return asyncio.run(show(options.config))
    from . import serve

    return serve.run(str(options.config or ""), hub=not options.no_hub)


def _answered_at_once(arguments: Sequence[str]) -> int | None:
    """The exit code of what somebody waits for with every command or key, and so needs no argument parser either."""
    if arguments == ["hook", "pre-tool-use"]:
        from .hook import pre_tool_use

        return pre_tool_use()
    if arguments[:1] == ["__complete"]:
        from .by_hub import run

        if (code := run(arguments, may_start=False)) is not None:
            return code
        from .completion import answer

        return answer(arguments[1:])
    if arguments[:1] == ["daemon"]:
        from .watchdog import replace_original

        return replace_original()
    verb = verb_of(arguments)
    # Options are shown for the width of the terminal here. Behind the verb, a word belongs to a command that is run.
    wants_help = {"-h", "--help"} & {*arguments[:3]}
    if verb in BY_HUB and "--no-hub" not in arguments[: arguments.index(verb)] and not wants_help:
        from .by_hub import run

        return run(arguments)
    return None


def verb_of(arguments: Sequence[str]) -> str:
    """The verb among the words of a command line; "" where there is none."""
    words = iter(arguments)
    for word in words:
        if word in ("--config", "--mode", "--host", "--port"):
            next(words, None)
        elif not word.startswith("-"):
            return word if word in VERBS else ""
    return ""


def _plain_server(arguments: Sequence[str]) -> tuple[str, bool] | None:
    """Configuration file, and whether to use a hub, for the usual ways to start a server; None for anything else.

    These need no argument parser, whose import would delay the start.
    """
    words = [word for word in arguments if word != "--no-hub"]
    # The second value is true if no --no-hub was taken out.
    if not words:
        return "", words == [*arguments]
    if len(words) == 2 and words[0] == "--config" and not words[1].startswith("-"):
        return words[1], words == [*arguments]
    return None


def parser(whole: Iterable[str] = VERBS, *, as_json: bool = False) -> argparse.ArgumentParser:
    """All verbs, with the options of these: the files of others are not imported.

    With `as_json`, what cannot be understood is told as JSON.
    """
    import argparse

    from .. import __version__
    from .verb import Parser, add_json

    Parser.as_json = as_json
    top = Parser(
        prog="remote-sandbox-mcp",
        description="SSH machines and sandboxes for coding agents: an MCP server, on standard streams or over HTTP.",
    )
    top.add_argument("--version", action="version", version=__version__, help="print the version")
    top.add_argument("--mode", choices=("stdio", "http"), default="stdio", help="how to serve (default: stdio)")
    top.add_argument("--host", help="with --mode http: the address to listen on (default: 127.0.0.1)")
    top.add_argument("--port", type=port, help="with --mode http: the port (default: 3000; 0: any that is free)")
    top.add_argument("--no-auth", action="store_true", help="with --mode http: ask for no key, on this machine alone")
    top.add_argument("--no-hub", action="store_true", help="serve in this process alone")
    # The options themselves have no defaults, so that one given before a verb is not overwritten after it.
    top.set_defaults(config=None, json=False)
    add_json(top, help=argparse.SUPPRESS)
    verbs = top.add_subparsers(dest="verb", metavar="VERB")
    files = {verb: SHARED.get(verb, verb) for verb in VERBS}
    wanted = {files[verb] for verb in whole}
    listed = argparse.Namespace(add_parser=lambda verb, **more: verbs.add_parser(verb, help=VERBS[verb], **more))
    for verb, file in files.items():
        if file not in wanted:
            listed.add_parser(verb)
        elif verb not in verbs.choices:
            importlib.import_module(f".{file}", __package__).add_arguments(listed)
    return top


def port(word: str) -> int:
    """The number of a port, 0 for any."""
    import argparse

    if not word.isdecimal() or int(word) > 65535:
        raise argparse.ArgumentTypeError("must be a whole number from 0 to 65535")
    return int(word)


def _run_verb(options: argparse.Namespace) -> int:
    import asyncio

    from ..core.errors import SandboxError

    module = importlib.import_module(f".{SHARED.get(options.verb, options.verb)}", __package__)
    try:
        # One that serves has no event loop of its own at first: the hub serves.
        done = module.run(options)
        return int(asyncio.run(done) if asyncio.iscoroutine(done) else done)
    except SandboxError as problem:
        from .verb import MISTAKE, fail

        return fail(problem, options.json, MISTAKE)
    except KeyboardInterrupt:
        # As shells report an end by SIGINT.
        return 130


def _serve_http(options: argparse.Namespace) -> int:
    from ..core.errors import SandboxError
    from . import serve

    try:
        return serve.run_http(
            options.config, options.host, options.port, without_key=options.no_auth, hub=not options.no_hub
        )
    except SandboxError as problem:
        from .verb import MISTAKE, complain

        complain(str(problem))
        return MISTAKE

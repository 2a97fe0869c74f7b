"""Sentences of the source that the page can show: collected from the syntax of every module that the page leads to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import remote_sandbox_mcp

PACKAGE = Path(remote_sandbox_mcp.__file__).parent
PAGE = f"{PACKAGE.name}.fronts.page.app"
# Calls that make a sentence, beside those of errors: mistakes in the configuration, which the page lists.
SPEAKERS = frozenset({"Fault", "report"})
# A sentence, and not a name or a word for programs.
SENTENCE = re.compile("[a-z]{2,} ")
# Modules that the page leads to, but whose errors answer only what it never asks for. All others are shown.
UNASKED = {
    "config.inherited": "hands machines over to a watchdog",
    "config.project_file": "an answer to `config allow`",
    "config.record": "an answer to verbs that change config.toml",
    "config.workspace_file": "an answer to `config allow`",
    "core.commands.interpreter": "the interpreter of run_python",
    "core.commands.session_handle": "sessions of run_python and exec_bash",
    "core.jobs.watch": "arguments of a job that is started, which the page does not do",
    "core.permission": "arguments of a job or a sandbox that the page does not give",
    "core.task": "a task that was not named",
    "core.texts.pages": "pages of a file that is read",
    "backends.shell.patterns": "a search in files",
    "backends.shell.search": "a search in files",
    "fronts.mcp.forms": "forms of a client",
    "fronts.mcp.tools.exec": "arguments that the page does not give",
    "fronts.mcp.tools.files": "files that are read and written",
    "fronts.mcp.tools.sandboxes": "arguments that the page does not give",
    "fronts.mcp.tools.workspaces": "arguments that the page does not give",
    "fronts.mcp.workspace": "a folder of the caller, and the page has none",
    "services.apps.deploy": "apps that are deployed",
    "services.files": "files that are read and written",
    "services.session": "a folder of the caller, and the page has none",
    "services.sessions.python": "run_python",
    "services.sessions.shell": "sessions of exec_bash",
    "services.suites.service": "run_tests",
    "services.watchdog.daemon": "an answer to `watchdog run`",
    "services.watchdog.ensure": "an answer to `watchdog start`",
    "services.watchdog.launchd": "an answer to `watchdog install`",
    "services.watchdog.manager": "an answer to `watchdog install`",
    "services.watchdog.service": "an answer to `watchdog stop`",
}
# Names of what keeps a reason until an error or a row tells it.
REASON = re.compile("why|trouble|reason|problem|cause|error|summary|found|hint|advice|cure|refusal")
# Modules that the page leads to, but whose texts are told to others.
TOLD_TO_OTHERS = {
    "backends.bubblewrap.images": "a script",
    "backends.engine": "lines for a shell",
    "backends.bubblewrap.network.proxy": "programs in a sandbox",
    "config.openssh": "`doctor`",
    "config.original": "`import` and `doctor`",
    "core.commands.shell_session": "results of commands",
    "core.gate": "files that tools read and write",
    "core.jobs.lifecycle": "its events, which the tests of the page make one by one",
    "core.suites": "results of run_tests",
    "core.texts": "texts of results",
    "core.workspaces.workspace": "links that the page does not make",
    "far.program": "lines for a shell",
    "fronts.mcp": "agents",
    "local.notify": "notifications",
    "local.store.original": "`import`",
    "services.gate.allowing": "agents and `allow`",
    "services.probe.measure": "lines for a shell",
    "services.suites": "results of run_tests",
    "services.transfers.records": "`transfers`",
    "services.watchdog": "`watchdog`",
    **dict.fromkeys(
        (
            "views.app_results",
            "views.exec_results",
            "views.job_results",
            "views.results",
            "views.texts",
            "views.sync_results",
        ),
        "agents",
    ),
}
# Parts of sentences that are translated as a whole, and lines for a shell.
PARTS = """
7 and 7
7 the 7
77 leased 7
by 7 until 7 ends7
it has 7 GPU77, not 7
job 7777
at 7 (in 7)
7 is 7
number 7
the connection to 7
its command 7
srun on 7
7 exec on 7
walls: Landlock 7 instead of namespaces: 7
7 holds 7: 7let its owner remove something from 7 or set a larger disk_mb under [local] in config.toml
the local sandbox needs bubblewrap, which is not installed7: run `sudo apt install bubblewrap` (Debian, Ubuntu) or \
`sudo dnf install bubblewrap` (Fedora, RHEL)
7: nothing can be run as 7
7its 7 did not start
7\x207\x20without\x20giving\x20a\x20shell7
its\x20shell\x20answered,\x20but\x207\x20did\x20not\x20start\x20in\x207\x20s7
7\x20if\x20that\x20is\x20really\x20meant,\x20or\x20look\x20first\x20with\x207
and\x20each\x20host\x20of\x20~/.ssh/config\x20that\x20fits\x207
did\x20you\x20mean\x207?\x20
has\x207
has\x20none
the\x20latest\x20are:\x207
there\x20is\x20none\x20yet
nothing was done: no machine that is configured can be used. 77 Correct that7
exec 7
unset TMUX; 7 && 7
remote-sandbox-mcp login 7
""".replace("\\\n", "").splitlines()


def shown_sentences() -> dict[str, str]:
    """Each sentence that can reach the page, with 7 in its gaps, and the module that makes it."""
    found: dict[str, str] = {}
    for name in sorted(reached(PAGE)):
        if name.removeprefix(f"{PACKAGE.name}.") not in UNASKED:
            for node in ast.walk(tree_of(name)):
                if isinstance(node, ast.Call) and speaks(node):
                    found |= {text: name for text in spoken(node, name) if SENTENCE.search(text)}
    return found


def shown_reasons() -> dict[str, str]:
    """Each text that is kept or returned as a reason, and may fill the gap of a sentence that reaches the page."""
    found: dict[str, str] = {}
    for module in sorted(reached(PAGE)):
        name = module.removeprefix(f"{PACKAGE.name}.")
        if name not in UNASKED and not any(name == it or name.startswith(f"{it}.") for it in TOLD_TO_OTHERS):
            told = {text for node in ast.walk(tree_of(module)) for value in kept(node) for text in texts(value, module)}
            told = {re.sub(r"\b7 ago", "7 s ago", text) for text in told}
            found |= {text: module for text in told.difference(PARTS) if SENTENCE.search(text) and text[0].isalnum()}
    return found


def kept(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, (ast.Return, ast.Yield)):
        yield from [node.value] if node.value else []
    elif isinstance(node, ast.Assign):
        yield from [node.value] if REASON.search(ast.unparse(node.targets[0])) else []
    elif isinstance(node, ast.Call):
        yield from (word.value for word in node.keywords if word.arg and REASON.search(word.arg))


def speaks(call: ast.Call) -> bool:
    made = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    return isinstance(made, ast.Name) and (made.id in SPEAKERS or made.id in error_classes())


def spoken(call: ast.Call, module: str) -> Iterator[str]:
    named = [word.value for word in call.keywords if word.arg in ("found", "remedy")]
    for argument in (*call.args, *named):
        yield from texts(argument, module)


def texts(node: ast.expr, module: str) -> list[str]:
    """The texts that an expression can be, as far as they are written in the source."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "7" for part in node.values)]
    if isinstance(node, ast.IfExp):
        return texts(node.body, module) + texts(node.orelse, module)
    if isinstance(node, ast.BoolOp):
        return [text for value in node.values for text in texts(value, module)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [
            one + other for one in texts(node.left, module) or ["7"] for other in texts(node.right, module) or ["7"]
        ]
    if isinstance(node, ast.Name):
        return [text for value in values_of(node.id, module) for text in texts(value, module)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return [re.sub(r"\{[^{}]*\}", "7", text) for text in texts(node.func.value, module)]
    return []


# The source


@cache
def files() -> dict[str, Path]:
    found = {}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(files()[name].read_text("utf-8"))


def reached(root: str) -> frozenset[str]:
    """The modules that a module imports, directly or not, on first use, too."""
    todo, found = [root], set()
    while todo:
        name = todo.pop()
        if name in files() and name not in found:
            found.add(name)
            todo += imported(name)
    return frozenset(found)


def imported(name: str) -> Iterator[str]:
    package = name.split(".") if files()[name].name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{each.name}" for each in node.names)


@cache
def error_classes() -> frozenset[str]:
    bases = {
        node.name: {getattr(base, "id", "") for base in node.bases}
        for name in files()
        for node in ast.walk(tree_of(name))
        if isinstance(node, ast.ClassDef)
    }
    found = {"SandboxError"}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return frozenset(found)


def values_of(constant: str, module: str) -> list[ast.expr]:
    """What a constant of a module is, or of the module that it imports it from."""
    sources = [module, *(name.rpartition(".")[0] for name in imported(module) if name.endswith(f".{constant}"))]
    return [constants(name)[constant] for name in sources if name in files() and constant in constants(name)]


@cache
def constants(module: str) -> dict[str, ast.expr]:
    assigned = [node for node in tree_of(module).body if isinstance(node, ast.Assign)]
    return {
        it.targets[0].id: it.value
        for it in assigned
        if isinstance(it.targets[0], ast.Name) and it.targets[0].id.isupper()
    }

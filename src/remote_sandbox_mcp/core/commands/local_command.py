"""Shell commands that an agent may run on this computer although its workspace is used only over there: git's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ..workspaces.workspace import Workspace

# The repository is here, so its commands are; a client may edit files by a command named apply_patch.
MEANT = frozenset({"git", "apply_patch"})
# What often stands beside them and computes nothing.
BESIDE = frozenset({"cd", "echo", "pwd", "true"})
BEHIND_A_PIPE = frozenset({"cat", "grep", "head", "sort", "tail", "wc"})
PIPES = frozenset({"|", "|&"})
SEPARATORS = PIPES | {"", ";", "&&", "||"}
REDIRECTIONS = frozenset({"<", "<<", "<<<", ">", ">>", ">&", "&>", "&>>"})
OPERATORS = "();<>|&\n"
# Each of them runs another command.
RUNNING = ("$(", "`", "<(", ">(")
RUN_BY_GIT = frozenset({"--exec", "-x", "bisect run", "filter-branch", "submodule foreach"})
LONGEST = 100_000
_DOCUMENT = re.compile(r"<<-?[ \t]*(['\"]?)([A-Za-z_]\w*)['\"]?")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def refusal(workspace: Workspace) -> str:
    """Explain to the agent why its command was not run here."""
    return (
        f"this was not run: commands of {workspace.folder} run on {workspace.sandbox} alone (only_remote), so use the "
        f"tool exec_bash of remote-sandbox, which runs them in {workspace.remote} there and takes your local edits "
        f"along; on this computer only git runs, and your own tools read and edit files"
    )


def is_gits(command: str) -> bool:
    """Whether a command line is about the repository alone. In doubt it is not."""
    text = _without_documents(command.replace("\\\n", " "))
    if text is None or len(text) > LONGEST or any(sign in text for sign in RUNNING):
        return False
    try:
        parts = list(_parts(text))
    except ValueError:
        return False
    return all(_may_run(*part) for part in parts) and any(words[0] in MEANT for _, words in parts)


def _without_documents(text: str) -> str | None:
    """The command without the texts that it passes by << to a program; None where one has no end."""
    kept: list[str] = []
    lines = iter(text.split("\n"))
    for line in lines:
        kept.append(line)
        if found := _DOCUMENT.search(line):
            body = _body(lines, found[2])
            # Without quotes around its word, commands in a document are run.
            if body is None or (not found[1] and any(sign in body for sign in RUNNING)):
                return None
    without = "\n".join(kept)
    # How agents write the message of a commit.
    for found in _DOCUMENT.finditer(text):
        without = without.replace(f"$(cat {found[0]}\n)", "")
    return without


def _body(lines: Iterator[str], end: str) -> str | None:
    body: list[str] = []
    for line in lines:
        if line.strip() == end:
            return "\n".join(body)
        body.append(line)
    return None


def _parts(text: str) -> Iterator[tuple[bool, list[str]]]:
    """Split a line into simple commands, with whether each is behind a pipe. Raises ValueError for anything more."""
    reader = shlex.shlex(text, posix=True, punctuation_chars=OPERATORS)
    reader.whitespace, reader.commenters, reader.whitespace_split = " \t\r", "", True
    words: list[str] = []
    is_piped = False
    for token in (*reader, "\n"):
        if not token or token.strip(OPERATORS):
            # Variables that are set for the command come before its name.
            if words or not _ASSIGNMENT.match(token):
                words.append(token)
        elif (sign := token.strip("\n")) in SEPARATORS:
            if words:
                yield is_piped, words
            words, is_piped = [], sign in PIPES
        elif token not in REDIRECTIONS:
            raise ValueError(token)


def _may_run(is_piped: bool, words: Sequence[str]) -> bool:
    name = words[0]
    if name == "git":
        pairs = map(" ".join, pairwise(words))
        # Aliases that begin with ! are shell commands.
        return not RUN_BY_GIT.intersection((*words, *pairs)) and not any("=!" in word for word in words)
    return name in MEANT or name in BESIDE or (is_piped and name in BEHIND_A_PIPE)

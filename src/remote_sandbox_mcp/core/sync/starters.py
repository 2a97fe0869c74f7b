"""Names of files and folders that make a program start, or instruct an agent, on this computer just by being there."""

from __future__ import annotations

import fnmatch
import re
import unicodedata

# Files and folders of a project that make a program start just by being there, at any depth. All names are folded.
RUNS_ALONE = frozenset({".mcp.json", ".envrc", ".codex", ".exrc", ".nvimrc", ".nvim.lua"})
# Folders of a project, and which of their entries make a program start.
RUNS_INSIDE: dict[str, tuple[str, ...]] = {
    ".git": ("hooks", "config", "config.worktree", "commondir", "rebase-merge"),
    ".claude": ("settings*.json", "hooks"),
    ".cursor": ("mcp.json", "hooks.json"),
    ".gemini": ("settings.json",),
    ".kiro": ("settings", "hooks"),
    ".roo": ("mcp.json",),
    ".vscode": ("tasks.json", "settings.json", "launch.json", "mcp.json"),
    ".zed": ("tasks.json", "settings.json"),
}
# Where git keeps repositories inside a repository: submodules and further working trees, at any depth.
INNER_REPOSITORIES = ("modules", "worktrees")
# Files that decide what is sent from here: one that comes from a machine could have more sent to it.
SENDING_RULES = frozenset({".gitignore", ".remote-sandbox.toml"})
# What comes from a machine only if its very path was asked for: whatever begins with a dot, and these. Programs read
# them as soon as a person opens or enters the folder that they are in, and agents follow what is in them.
ACTING = re.compile(
    rb"(?:claude|agents?)(?:\..+)?\.md|(?:gemini|qwen|codex|warp|crush|skill|copilot-instructions)\.md"
    rb"|(?:opencode|crush)\.jsonc?|mise(?:\..*)?|lefthook.*\.(?:ya?ml|toml|json)"
    rb"|(?:flake|shell|devenv)\.nix|devenv\.ya?ml|devbox\.json"
    rb"|(?:site|user)customize(?:\..*)?|(?:site|dist)-packages|autorun\.inf|desktop\.ini",
    re.DOTALL,
)
ACTING_ENDS = (
    *(b".mdc", b".instructions.md", b".code-workspace", b".sublime-project"),
    *(b".desktop", b".lnk", b".scf", b".url"),
)
# Where jobs write their logs by default: nothing reads a folder of this name by itself.
JOB_LOGS = b".codex_logs"
ALERTING = frozenset({*RUNS_ALONE, *RUNS_INSIDE, *SENDING_RULES})
ALERTING_BYTES = frozenset(name.encode() for name in ALERTING)
# Characters that HFS+ ignores in a name.
UNSEEN = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")


def folded(name: str) -> str:
    """A name as a file system sees it that ignores case and Unicode spelling."""
    if name.isascii():
        return name.lower()
    return UNSEEN.sub("", unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold()))


def starter_depth(names: tuple[str, ...]) -> int:
    """Return how many names lead to an entry that makes a program start (see RUNS_ALONE); 0 if there is none."""
    plain = tuple(map(folded, names))
    for at, name in enumerate(plain):
        if name in RUNS_ALONE:
            return at + 1
        inside = RUNS_INSIDE.get(name, ())
        if inside and (found := _first_starter(plain, at + 1, inside)):
            return found
    return 0


def _first_starter(names: tuple[str, ...], start: int, inside: tuple[str, ...]) -> int:
    inner = inside is RUNS_INSIDE[".git"] and names[start : start + 1] and names[start] in INNER_REPOSITORIES
    for at in range(start, len(names) if inner else min(start + 1, len(names))):
        if any(fnmatch.fnmatchcase(names[at], pattern) for pattern in inside):
            return at + 1
    return 0


def acts(name: bytes) -> bool:
    """Whether an entry of this name makes a program or an agent do something just by being there."""
    plain = name.lower() if name.isascii() else folded(name.decode("utf-8", "surrogateescape")).encode(errors="replace")
    is_hidden = plain[:1] == b"." and plain != JOB_LOGS
    return is_hidden or plain.endswith(ACTING_ENDS) or ACTING.fullmatch(plain) is not None


def acting_part(path: bytes) -> bytes:
    """The beginning of a path up to the first name that acts; empty where none does."""
    end = 0
    for name in path.split(b"/"):
        end += len(name)
        if acts(name):
            return path[:end]
        end += 1
    return b""


def is_alerting(name: bytes) -> bool:
    return name.lower() in ALERTING_BYTES or not name.isascii()

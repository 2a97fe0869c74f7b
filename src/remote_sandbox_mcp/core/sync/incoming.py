"""Rules for entries of a tree from a machine: which of them may be written to this computer."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import BadArgument
from ..gate import STARTS, Ground, ResolvedPath, Shut, is_named, names_of, refusal, why_shut
from ..sandboxes.files import Problem
from .starters import ALERTING, RUNS_INSIDE, SENDING_RULES, acting_part, folded, is_alerting

RULES = "a file that decides what is sent from here"
HELD = (
    "kept there, because files of this name make a program or an agent do something; if you need it, fetch it by its "
    "very path"
)


class Sieve:
    """Filters what a pull would write: drops entries that are closed in the target, and reports each once."""

    def __init__(self, root: ResolvedPath, ground: Ground) -> None:
        self._root = root
        self._ground = ground
        self._above = _alerts(root.names)
        # Folders that contain closed places, as names from the root on.
        self._parents = set(_parents(root, ground))

    def check_file(self, path: str) -> None:
        """Check one file that is to be written into the tree, or as the tree itself. Raises BadArgument."""
        below = names_of(path)[len(self._root.names) :]
        way = self._root.below("/".join(below)) if below else self._root
        if shut := self._why_shut(way, is_folder=False):
            raise BadArgument(refusal(path, way, shut, self._ground, writing=True))

    def held(self, path: bytes) -> bytes:
        """The beginning of a path at which nothing comes unless its very path was asked for; empty if there is none.

        What the operator allows comes with the tree.
        """
        part = acting_part(path)
        depth = len(self._root.names) + len(part.split(b"/"))
        return b"" if part and is_named(self._way(path), depth, self._ground) else part

    def closes(self, folder: bytes) -> bool:
        """Whether a folder lies in something closed, even if the source did not list the folders above it."""
        return self._is_suspect(folder) and self._why_shut(self._way(folder), is_folder=True) is not None

    def keep(self, folder: bytes, entries: dict[bytes, bytes], problems: list[Problem]) -> dict[bytes, bytes]:
        """The entries of a folder that may be written."""
        doubtful = entries if self._is_suspect(folder) else [name for name in entries if is_alerting(name)]
        out = {name for name in doubtful if self._leaves_out(folder, name, entries[name], problems)}
        return {name: text for name, text in entries.items() if name not in out} if out else entries

    def _leaves_out(self, folder: bytes, name: bytes, text: bytes, problems: list[Problem]) -> bool:
        path = folder + b"/" + name if folder else name
        way = self._way(path)
        if shut := self._why_shut(way, is_folder=text[:1] == b"d"):
            reason = f"left out: {refusal('it', way, shut, self._ground, writing=True)}"
            problems.append(Problem(path.decode("utf-8", "surrogateescape"), reason))
        return shut is not None

    def _why_shut(self, way: ResolvedPath, *, is_folder: bool) -> Shut | None:
        if shut := why_shut(way, self._ground, writing=True):
            return shut
        plain, what = tuple(map(folded, way.names)), RULES
        depth = next((at for at, name in enumerate(plain, 1) if name in SENDING_RULES), 0)
        if not depth and not is_folder and plain[-1:] and plain[-1] in RUNS_INSIDE:
            # A link, or a file that git takes for one, would lead to what starts something under another name.
            depth, what = len(plain), STARTS
        return Shut(what, depth, is_inside=False) if depth and not is_named(way, depth, self._ground) else None

    def _is_suspect(self, folder: bytes) -> bool:
        """Whether every entry of this folder must be checked, not only those with suspicious names."""
        if self._above:
            return True
        names = tuple(map(folded, names_of(folder.decode("utf-8", "surrogateescape")))) if self._parents else ()
        if self._parents and any(names[:at] in self._parents for at in range(len(names) + 1)):
            return True
        return b"." in folder and any(map(is_alerting, folder.split(b"/")))

    def _way(self, path: bytes) -> ResolvedPath:
        return self._root.below(path.decode("utf-8", "surrogateescape"))


def _alerts(names: tuple[str, ...]) -> bool:
    return any(folded(name) in ALERTING for name in names)


def _parents(root: ResolvedPath, ground: Ground) -> Iterator[tuple[str, ...]]:
    for place, is_home in [*((home, True) for home in ground.homes), *((shut.place, False) for shut in ground.closed)]:
        depth = place.depth_of(root)
        if depth is not None:
            names = tuple(map(folded, place.names[depth:]))
            yield names if is_home else names[:-1]

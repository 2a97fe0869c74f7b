"""Which of the user's own files an agent may read and write, which are left out of trees, and what is said of it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from remote_sandbox_mcp.core.errors import BadArgument
from remote_sandbox_mcp.core.gate import (
    HIDDEN,
    OWN,
    PROGRAMS,
    SYSTEM,
    Allowed,
    Closed,
    Ground,
    NotAllowed,
    ResolvedPath,
    admit,
    is_project,
    why_shut,
)
from remote_sandbox_mcp.core.sandboxes.files import Problem
from remote_sandbox_mcp.core.sync.ignore import Ignore
from remote_sandbox_mcp.core.sync.incoming import Sieve
from remote_sandbox_mcp.core.sync.plan import make_plan
from remote_sandbox_mcp.core.sync.transfer import Order, Place
from remote_sandbox_mcp.core.sync.tree import Tree

HOME = "/home/me"
STATE = Closed(ResolvedPath("/home/me/state"), OWN, reading=True, ever=True)
PLACES = (STATE, Closed(ResolvedPath("/home/me/bin"), PROGRAMS), Closed(ResolvedPath("/etc"), SYSTEM))


def ground(home: str = HOME, named: tuple[str, ...] = (), allowed: tuple[str, ...] = ("/",)) -> Ground:
    places = tuple(Allowed(ResolvedPath(path)) for path in allowed)
    return Ground((ResolvedPath(home),), PLACES, tuple(map(ResolvedPath, named)), places)


def rules(real: str, known: Ground, *, writing: bool = False) -> tuple[str, ...]:
    return admit(real, ResolvedPath(real), ResolvedPath(real), known, writing=writing).rules


# Where it really is, what its owner allows, and the lines that are added to a push.
READ: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "an ordinary folder": ("/home/me/project", HOME, (), ()),
    "hidden, but not in the home folder": ("/data/.cache", HOME, (), ()),
    "hidden further down": ("/home/me/project/.github", HOME, (), ()),
    "what would start something": ("/home/me/project/.git/hooks", HOME, (), ()),
    "programs": ("/home/me/bin", HOME, (), ()),
    "a name that only begins like home": ("/home/me2/.ssh", HOME, (), ()),
    "somebody else's home": ("/home/you/.ssh", HOME, (), ()),
    "the home folder": ("/home/me", HOME, (), ("/.*", "/state")),
    "the folder around it": ("/home", HOME, (), ("/me/.*", "/me/state")),
    "the whole file system": ("/", HOME, (), ("/home/me/.*", "/home/me/state")),
    "a home at the root": ("/etc/x", "/", (), ()),
    "allowed": ("/home/me/.config/app", HOME, ("/home/me/.config/app",), ()),
    "in what is allowed": ("/home/me/.config/app/deep/er", HOME, ("/home/me/.config/app",), ()),
    "allowed with a slash": ("/home/me/.config/app", HOME, ("/etc", "/home/me/.config/"), ()),
    "signs in the folder's name": ("/home", "/home/m[e]*?\\", (), ("/m\\[e]\\*\\?\\\\/.*", "/me/state")),
}


@pytest.mark.parametrize(("real", "home", "allowed", "added"), READ.values(), ids=READ)
def test_ordinary_files_may_be_read(real: str, home: str, allowed: tuple[str, ...], added: tuple[str, ...]) -> None:
    assert rules(real, ground(home, allowed)) == added


CLOSED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "keys": ("/home/me/.ssh", HOME, ()),
    "a key": ("/home/me/.ssh/id_ed25519", HOME, ()),
    "a start-up file": ("/home/me/.bashrc", HOME, ()),
    "something deep in a hidden folder": ("/home/me/.config/app/plugins", HOME, ()),
    "home in other letters": ("/HOME/Me/.ssh", HOME, ()),
    "more than is allowed": ("/home/me/.config", HOME, ("/home/me/.config/app",)),
    "a name that only begins like what is allowed": ("/home/me/.config/app2", HOME, ("/home/me/.config/app",)),
    "something else is allowed": ("/home/me/.ssh", HOME, ("/home/me/.config", "/etc")),
    "all around it is allowed": ("/home/me/.ssh", HOME, ("/home/me", "/")),
    "hidden in a home at the root": ("/.ssh", "/", ()),
}


@pytest.mark.parametrize("writing", [False, True], ids=["read", "written"])
@pytest.mark.parametrize(("real", "home", "allowed"), CLOSED.values(), ids=CLOSED)
def test_hidden_parts_of_the_home_folder_are_refused(
    real: str, home: str, allowed: tuple[str, ...], writing: bool
) -> None:
    with pytest.raises(BadArgument, match="hidden part of your home folder"):
        rules(real, ground(home, allowed), writing=writing)


# What is not written, and what the operator has to name for it to be.
WRITTEN_ONLY_WHERE_NAMED = {
    "/home/me/bin": "~/bin",
    "/home/me/BIN/ls": "~/BIN",
    "/etc": "/etc",
    "/etc/cron.d/x": "/etc",
    "/home/me/p/.git/hooks": "~/p/.git/hooks",
    "/home/me/p/.git/hooks/post-checkout": "~/p/.git/hooks",
    "/home/me/p/.GIT/Hooks/x": "~/p/.GIT/Hooks",
    "/home/me/p/.g\u200cit/config": "~/p/.g\u200cit/config",
    "/home/me/p/.git/config": "~/p/.git/config",
    "/home/me/p/.git/modules/a/b/hooks/x": "~/p/.git/modules/a/b/hooks",
    "/home/me/p/.git/worktrees/w/config.worktree": "~/p/.git/worktrees/w/config.worktree",
    "/home/me/p/.mcp.json": "~/p/.mcp.json",
    "/data/p/.MCP.json": "/data/p/.MCP.json",
    "/data/p/.claude/settings.local.json": "/data/p/.claude/settings.local.json",
    "/data/p/.codex/config.toml": "/data/p/.codex",
    "/data/p/.cursor/mcp.json": "/data/p/.cursor/mcp.json",
    "/data/p/.vscode/tasks.json": "/data/p/.vscode/tasks.json",
    "/data/p/.envrc": "/data/p/.envrc",
}


@pytest.mark.parametrize(("path", "place"), WRITTEN_ONLY_WHERE_NAMED.items(), ids=WRITTEN_ONLY_WHERE_NAMED)
def test_files_that_start_programs_are_writable_only_if_named_exactly(path: str, place: str) -> None:
    with pytest.raises(BadArgument) as refused:
        rules(path, ground(), writing=True)
    assert str(refused.value).endswith(f'allow_hidden = ["{place}"] under [server] in config.toml')
    with pytest.raises(BadArgument):
        rules(path, ground(named=("/home/me", "/data", "/")), writing=True)
    rules(path, ground(named=(place.replace("~", HOME),)), writing=True)
    rules(path, ground())


@pytest.mark.parametrize(
    "path",
    [
        *("/data/p/.git/HEAD", "/data/p/.git/refs/heads/config", "/data/p/.git/refs/heads/hooks/x"),
        *("/data/p/hooks/config", "/data/p/.vscode/extensions.json", "/data/p/.claude/agents/a.md"),
        *("/etc2", "/home/me/project/bin"),
    ],
)
def test_names_that_only_resemble_those_are_writable(path: str) -> None:
    rules(path, ground(), writing=True)


@pytest.mark.parametrize("path", ["/home/me/state", "/home/me/STATE/config.toml", "/home/me/state/known_hosts"])
@pytest.mark.parametrize("writing", [False, True], ids=["read", "written"])
def test_our_own_files_are_closed_whatever_the_operator_allows(path: str, writing: bool) -> None:
    with pytest.raises(BadArgument, match="part of remote-sandbox-mcp itself"):
        rules(path, ground(named=(path, "/home/me/state"), allowed=("/home/me/state", path)), writing=writing)


@pytest.mark.parametrize("path", ["/data", "/data/../etc", "/data/project2", "/DATA/project"])
@pytest.mark.parametrize("writing", [False, True], ids=["read", "written"])
def test_everything_outside_of_the_allowed_places_is_closed(path: str, writing: bool) -> None:
    known = ground(allowed=("/data/project", "/srv/x"))
    with pytest.raises(NotAllowed, match=f"remote-sandbox-mcp allow '{path}'{'' if writing else ' --read'}$"):
        rules(path, known, writing=writing)
    rules("/data/project/deep", known, writing=writing)


def test_nothing_is_allowed_by_itself() -> None:
    with pytest.raises(NotAllowed):
        rules("/data/project", Ground())


def test_what_may_be_read_may_not_be_written() -> None:
    known = Ground(allowed=(Allowed(ResolvedPath("/data"), writing=False), Allowed(ResolvedPath("/data/out"))))
    rules("/data/x", known)
    with pytest.raises(NotAllowed) as refused:
        rules("/data/my x", known, writing=True)
    assert str(refused.value).endswith("remote-sandbox-mcp allow '/data/my x'")
    rules("/data/out/x", known, writing=True)


SHARED = (ResolvedPath("/home"),)
# A place that is allowed, a path in it, and whether it is open although other users have their homes there.
OTHERS_HOMES = {
    "another home in what is allowed": ("/home", "/home/you/p", False),
    "the other home itself": ("/", "/home/you", False),
    "the own one": ("/home", "/home/me/p", True),
    "a project in another home": ("/home/you/p", "/home/you/p/x", True),
    "another home that was named": ("/home/you", "/home/you/p", True),
    "keys in a home that was named": ("/home/you", "/home/you/.ssh/id", False),
    "beside the project in another home": ("/home/you/p", "/home/you/q", False),
    "around the homes": ("/", "/data/x", True),
}


@pytest.mark.parametrize(("allowed", "path", "is_open"), OTHERS_HOMES.values(), ids=OTHERS_HOMES)
@pytest.mark.parametrize("writing", [False, True], ids=["read", "written"])
def test_other_users_homes_are_closed(allowed: str, path: str, is_open: bool, writing: bool) -> None:
    known = replace(ground(allowed=(allowed,)), home_parents=SHARED)
    with nullcontext() if is_open else pytest.raises(BadArgument):
        rules(path, known, writing=writing)


def test_a_tree_is_sent_without_the_homes_of_others() -> None:
    ignore = Ignore([rule.encode() for rule in rules("/", replace(ground(), home_parents=SHARED))])
    assert ignore.leaves_out_below(b"home/you", True)
    assert ignore.leaves_out_below(b"home/me/.ssh", True)
    assert not ignore.leaves_out_below(b"home/me/p", True)


PROJECTS = {
    "/home/me/p": True,
    "/home/you/p": True,
    "/data": True,
    "/": False,
    "/home": False,
    "/home/me": False,
    "/HOME/Me": False,
    "/home/you": False,
    "/etc": False,
}


@pytest.mark.parametrize(("path", "is_one"), PROJECTS.items(), ids=PROJECTS)
def test_a_project_is_no_home_and_contains_none(path: str, is_one: bool) -> None:
    assert is_project(ResolvedPath(path), replace(ground(), home_parents=SHARED)) is is_one


def test_a_link_is_judged_by_its_target_and_named_as_given() -> None:
    with pytest.raises(BadArgument, match=r'^~/innocent is .*allow_hidden = \["~/\.ssh"\]'):
        admit(
            "~/innocent", ResolvedPath("/home/me/innocent"), ResolvedPath("/home/me/.ssh/keys"), ground(), writing=False
        )


def test_a_hidden_link_is_closed_whatever_its_target() -> None:
    with pytest.raises(BadArgument, match=r'allow_hidden = \["~/\.config"\]'):
        admit(
            "x",
            ResolvedPath("/home/me/.config/autostart"),
            ResolvedPath("/data/config/autostart"),
            ground(),
            writing=True,
        )


def test_identity_counts_not_the_spelling_of_a_name() -> None:
    """A second name for a folder: another spelling, a firmlink, a bind mount."""
    keys = Closed(ResolvedPath("/home/me/.ssh", ((1, 2), (1, 3), (1, 4), (1, 5))), HIDDEN, reading=True)
    known = Ground(
        (ResolvedPath(HOME, ((1, 2), (1, 3), (1, 4))),),
        (keys,),
        allowed=(Allowed(ResolvedPath("/srv", ((1, 2), (1, 9)))),),
    )
    assert why_shut(ResolvedPath("/mnt/x/id", ((1, 2), (1, 7), (1, 5))), known, writing=False)
    assert why_shut(ResolvedPath("/Volumes/me/.new", ((1, 2), (1, 7), (1, 4))), known, writing=False)
    assert not why_shut(ResolvedPath("/mnt/x/id", ((1, 2), (1, 7), (1, 6))), known, writing=False)
    # What is allowed is allowed by its other name, too.
    admit("x", ResolvedPath("/SRV/x"), ResolvedPath("/SRV/x", ((1, 2), (1, 9), (1, 8))), known, writing=True)


# What the lines for these ends leave out; a path that ends in a slash is a folder.
LEFT_OUT: dict[str, tuple[str, str, list[bytes], list[bytes]]] = {
    "the home folder": (HOME, HOME, [b".ssh/", b".bashrc", b".ssh/id", b"state/"], [b"project/", b"project/.github/"]),
    "around it": ("/home", HOME, [b"me/.ssh/", b"me/.bashrc"], [b"me/", b"me/x", b"you/.ssh/", b".x"]),
    "odd names": ("/home", "/home/m[e]*", [b"m[e]*/.ssh/"], [b"me/.ssh/", b"m[e]x/.ssh/"]),
    "a name with a backslash": ("/home", "/home/m\\e", [b"m\\e/.ssh/"], [b"me/.ssh/"]),
    "a name with spaces": ("/home", "/home/ me ", [b" me /.ssh/"], [b"me/.ssh/"]),
    "a name like a comment": ("/home", "/home/#me", [b"#me/.ssh/"], []),
}


@pytest.mark.parametrize(("real", "home", "out", "kept"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_the_exclude_rules_match_only_closed_places(real: str, home: str, out: list[bytes], kept: list[bytes]) -> None:
    # The caller's own rules do not bring them back.
    ignore = Ignore([rule.encode() for rule in ("!.*", "!.ssh/", *rules(real, ground(home)))])
    for path in (*out, *kept):
        assert ignore.leaves_out_below(path.rstrip(b"/"), path.endswith(b"/")) is (path in out), path


# What a pull to a folder brings: entries that are left out, and entries that are not. A slash ends a folder.
PULLED: dict[str, tuple[str, list[str], list[str]]] = {
    "a project": (
        "/data/p",
        [".mcp.json", ".git/", "a/.git/", ".vscode/", ".codex/", "b/.Envrc", ".bashrc", "CLAUDE.md", "a/mise.toml"],
        ["src/", "src/x", "a/", "b/", "bin/", "hooks", "config"],
    ),
    "a repository": ("/data/p/.git", ["hooks/", "config", "modules/m/config"], ["HEAD", "modules/", "modules/m/"]),
    "a named folder": ("/data/p/.vscode", ["tasks.json", ".x"], ["extensions.json", "inner/"]),
    "a link or file in place of a folder": ("/data/p", [".git", ".vscode", ".claude"], ["git", "vscode"]),
    "the home folder": (HOME, [".ssh/", ".bashrc", "bin/", "state/", "p/.mcp.json", "p/.x"], ["p/", "p/bin/"]),
    "all": ("/", ["etc/", "home/me/.ssh/", "home/me/bin/"], ["home/", "home/me/", "home/you/", "srv/", "home/me/p/"]),
}


def tree(entries: list[str]) -> Tree:
    """As a machine tells it, with all folders in it."""
    folders: dict[bytes, list[bytes]] = {b"": []}
    for path in entries:
        folder, _, name = path.rstrip("/").rpartition("/")
        meta = b"d755 0 0" if path.endswith("/") else b"f644 1 0"
        folders.setdefault(folder.encode(), []).extend((name.encode(), meta))
        if path.endswith("/"):
            # What a closed folder holds is closed, too, even if the folder itself is not told.
            folders.setdefault(path.rstrip("/").encode(), [])
            folders[path.rstrip("/").encode()] += [b"inner", b"f644 1 0"]
    blocks = {folder: b"\0".join(fields) for folder, fields in folders.items()}
    return Tree("dir", "x", "x", "h", folders=blocks, counts={folder: len(blocks) for folder in blocks})


@pytest.mark.parametrize(("root", "out", "kept"), PULLED.values(), ids=PULLED)
def test_a_pull_skips_closed_places_and_reports_them(root: str, out: list[str], kept: list[str]) -> None:
    order = Order(source=Place("far", "x"), target=Place("", root), default_excludes=False)
    plan = make_plan(tree(out + kept), Tree("missing", root, root, HOME), order, Sieve(ResolvedPath(root), ground()))
    planned = {item.path.decode() for item in plan.send}
    assert planned == {path + "inner" if path.endswith("/") else path for path in kept}
    assert {problem.path for problem in plan.problems} == {path.rstrip("/") for path in out}
    assert all(problem.reason.startswith(("left out: it is ", "kept there, ")) for problem in plan.problems)


def test_a_pull_writes_what_the_operator_allows() -> None:
    problems: list[Problem] = []
    sieve = Sieve(ResolvedPath("/data/p"), ground(named=("/data/p/.mcp.json",)))
    entries = {b".mcp.json": b"f644 1 0", b".envrc": b"f644 1 0"}
    assert list(sieve.keep(b"", entries, problems)) == [b".mcp.json"]
    assert [problem.path for problem in problems] == [".envrc"]


@pytest.mark.parametrize("path", ["/data/p/.mcp.json", "/data/p/.git", "/data/p/.git/config"])
def test_a_single_file_is_judged_by_its_name_in_the_folder(path: str) -> None:
    with pytest.raises(BadArgument, match="run something"):
        Sieve(ResolvedPath("/data/p"), ground()).check_file(path)
    Sieve(ResolvedPath("/data/p"), ground()).check_file("/data/p/x")

"""Which of the user's own files are left out of every sync, and which places are refused."""

from __future__ import annotations

import pytest

from remote_sandbox_mcp.core.errors import BadArgument
from remote_sandbox_mcp.core.guard import guard
from remote_sandbox_mcp.core.ignore import Ignore
from remote_sandbox_mcp.core.transfer import Order, Place

HOME = "/home/me"
ORDER = Order(source=Place("", "x"), target=Place("gpu1", "x"), excludes=("*.o",))

# Where it really is, what its owner allows, and the rule that is added.
ALLOWED: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "an ordinary folder": ("/home/me/project", HOME, (), ()),
    "hidden, but not in the home folder": ("/data/.cache", HOME, (), ()),
    "hidden further down": ("/home/me/project/.github", HOME, (), ()),
    "a name that only begins like home": ("/home/me2/.ssh", HOME, (), ()),
    "somebody else's home": ("/home/you/.ssh", HOME, (), ()),
    "the home folder": ("/home/me", HOME, (), ("/.*",)),
    "the folder around it": ("/home", HOME, (), ("/me/.*",)),
    "the whole file system": ("/", HOME, (), ("/home/me/.*",)),
    "a home at the root": ("/etc/x", "/", (), ()),
    "all of a home at the root": ("/", "/", (), ("/.*",)),
    "allowed": ("/home/me/.config/app", HOME, ("/home/me/.config/app",), ()),
    "in what is allowed": ("/home/me/.config/app/deep/er", HOME, ("/home/me/.config/app",), ()),
    "allowed with a slash": ("/home/me/.config/app", HOME, ("/etc", "/home/me/.config/"), ()),
    "signs in the folder's name": ("/home", "/home/m[e]*?\\", (), ("/m\\[e]\\*\\?\\\\/.*",)),
}


@pytest.mark.parametrize(("real", "home", "allowed", "added"), ALLOWED.values(), ids=ALLOWED)
def test_what_may_be_synced(real: str, home: str, allowed: tuple[str, ...], added: tuple[str, ...]) -> None:
    assert guard(ORDER, ORDER.source, real, home, allowed).excludes == ("*.o", *added)


REFUSED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "keys": ("/home/me/.ssh", HOME, ()),
    "a key": ("/home/me/.ssh/id_ed25519", HOME, ()),
    "a start-up file": ("/home/me/.bashrc", HOME, ()),
    "something deep in a hidden folder": ("/home/me/.config/app/plugins", HOME, ()),
    "more than is allowed": ("/home/me/.config", HOME, ("/home/me/.config/app",)),
    "a name that only begins like what is allowed": ("/home/me/.config/app2", HOME, ("/home/me/.config/app",)),
    "something else is allowed": ("/home/me/.ssh", HOME, ("/home/me/.config", "/etc")),
    "hidden in a home at the root": ("/.ssh", "/", ()),
}


@pytest.mark.parametrize(("real", "home", "allowed"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(real: str, home: str, allowed: tuple[str, ...]) -> None:
    with pytest.raises(BadArgument, match="hidden part of your home folder"):
        guard(ORDER, ORDER.source, real, home, allowed)


def test_a_link_is_judged_by_where_it_leads_and_told_as_it_was_given() -> None:
    with pytest.raises(BadArgument, match=r'^/home/me/innocent is .*allow_hidden = \["~/\.ssh"\]'):
        guard(ORDER, Place("", "/home/me/innocent"), "/home/me/.ssh/keys", HOME, ())


# What a rule for these ends leaves out; a path that ends in a slash is a folder.
LEFT_OUT: dict[str, tuple[str, str, list[bytes], list[bytes]]] = {
    "the home folder": (HOME, HOME, [b".ssh/", b".bashrc", b".ssh/id"], [b"project/", b"project/.github/", b"x"]),
    "around it": ("/home", HOME, [b"me/.ssh/", b"me/.bashrc"], [b"me/", b"me/x", b"you/.ssh/", b".x"]),
    "odd names": ("/home", "/home/m[e]*", [b"m[e]*/.ssh/"], [b"me/.ssh/", b"m[e]x/.ssh/"]),
    "a name with a backslash": ("/home", "/home/m\\e", [b"m\\e/.ssh/"], [b"me/.ssh/"]),
    "a name with spaces": ("/home", "/home/ me ", [b" me /.ssh/"], [b"me/.ssh/"]),
    "a name like a comment": ("/home", "/home/#me", [b"#me/.ssh/"], []),
}


@pytest.mark.parametrize(("real", "home", "out", "kept"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_the_rule_fits_the_hidden_entries_alone(real: str, home: str, out: list[bytes], kept: list[bytes]) -> None:
    # The caller's own rules do not bring them back.
    order = Order(source=Place("", "x"), target=Place("gpu1", "x"), excludes=("!.*", "!.ssh/"), default_excludes=False)
    ignore = Ignore([rule.encode() for rule in guard(order, order.source, real, home, ()).rules])
    for path in (*out, *kept):
        assert ignore.leaves_out_below(path.rstrip(b"/"), path.endswith(b"/")) is (path in out), path

"""Neither a desktop nor macOS is here: scripts take the places of notify-send and osascript."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote_sandbox_mcp.core.jobs.watch import Unsent
from remote_sandbox_mcp.core.permission import Notify
from remote_sandbox_mcp.local.notify import announcer as desktop
from remote_sandbox_mcp.local.notify import program
from remote_sandbox_mcp.local.notify.announcer import Announcer
from tests.support import notify_scenes as scenes
from tests.support.notify_scenes import HIDDEN, NASTY, called, event, watch
from tests.support.programs import look_in

SESSIONS = [{"DISPLAY": ":0"}, {"WAYLAND_DISPLAY": "wayland-0"}, {"DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/bus"}]


@pytest.fixture(autouse=True)
def programs_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    look_in(monkeypatch, tmp_path)


def environ(folder: Path, **more: str) -> dict[str, str]:
    return {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), "SECRET": HIDDEN, **more}


@pytest.mark.parametrize("session", SESSIONS, ids=[next(iter(session)) for session in SESSIONS])
async def test_notify_send_gets_plain_words(tmp_path: Path, session: dict[str, str]) -> None:
    _, record = scenes.program(tmp_path / "notify-send")
    await desktop.show(watch(name="--help"), event(NASTY), environ(tmp_path, **session), "linux")
    seen = called(record)
    *options, title, body = seen["argv"]
    assert options == ["--app-name=remote-sandbox-mcp", "--"]
    assert title == "Job --help on gpu1: succeeded"
    assert body.startswith("‹b›50% ＆amp; done‹/b› ＼074img＼076 evil")
    assert not set(body) & set("<>&\\\n\r\0\x1b\x07\u202e")
    assert session.items() <= seen["env"].items()
    assert HIDDEN not in seen["env"].values()


async def test_osascript_gets_its_text_as_arguments_and_never_as_source(tmp_path: Path) -> None:
    _, record = scenes.program(tmp_path / "osascript")
    await desktop.show(watch(name="-e"), event(NASTY), environ(tmp_path), "darwin")
    *script, title, body = called(record)["argv"]
    assert script == [
        *("-e", "on run argv"),
        *("-e", "display notification (item 2 of argv) with title (item 1 of argv)"),
        *("-e", "end run"),
    ]
    assert title == "Job -e on gpu1: succeeded"
    assert body.endswith('"; do shell script "x')


async def test_a_text_is_never_too_long(tmp_path: Path) -> None:
    _, record = scenes.program(tmp_path / "notify-send")
    await desktop.show(watch(name="n" * 5000), event("s" * 100_000), environ(tmp_path, DISPLAY=":0"), "linux")
    assert all(len(word) <= 500 for word in called(record)["argv"])


@pytest.mark.parametrize(
    ("platform", "more", "reason"),
    [
        pytest.param("linux", {}, "nobody is logged in to a desktop", id="no session"),
        pytest.param("linux", {"DISPLAY": ""}, "nobody is logged in to a desktop", id="empty session"),
        pytest.param("linux", {"DISPLAY": ":0"}, "notify-send is not installed", id="no notify-send"),
        pytest.param("darwin", {}, "osascript is not installed", id="no osascript"),
    ],
)
async def test_without_a_desktop_it_is_not_tried_again(
    tmp_path: Path, platform: str, more: dict[str, str], reason: str
) -> None:
    with pytest.raises(Unsent, match=reason) as caught:
        await desktop.show(watch(), event(), {"PATH": str(tmp_path), **more}, platform)
    assert not caught.value.passing


@pytest.mark.parametrize("name", ["notify-send", "osascript"])
async def test_the_path_of_a_session_does_not_choose_the_program(tmp_path: Path, name: str) -> None:
    _, record = scenes.program(tmp_path / "planted" / name)
    platform = "linux" if name == "notify-send" else "darwin"
    with pytest.raises(Unsent, match=f"{name} is not installed here"):
        await desktop.show(watch(), event(), environ(tmp_path / "planted", DISPLAY=":0"), platform)
    assert not record.exists()


async def test_what_a_failing_program_says_is_told(tmp_path: Path) -> None:
    scenes.program(tmp_path / "notify-send", "sys.exit('no notification daemon\\x1b[0m')")
    with pytest.raises(Unsent, match=r"notify-send ended with status 1; it said: no notification daemon$") as caught:
        await desktop.show(watch(), event(), environ(tmp_path, DISPLAY=":0"), "linux")
    assert not caught.value.passing


async def test_a_program_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desktop, "LIMIT_S", 1.0)
    scenes.program(tmp_path / "notify-send", "import time; time.sleep(50)")
    with pytest.raises(Unsent, match="did not end within 1 s"):
        await desktop.show(watch(), event(), environ(tmp_path, DISPLAY=":0"), "linux")


async def test_notices_can_be_turned_off(tmp_path: Path) -> None:
    _, record = scenes.program(tmp_path / "notify-send")
    announcer = Announcer(Notify(desktop=False), tmp_path, environ(tmp_path, DISPLAY=":0"))
    with pytest.raises(Unsent, match="desktop = false under"):
        await announcer.announce("desktop", watch(), event())
    assert not record.exists()


async def test_an_announcer_shows_what_it_is_given(tmp_path: Path) -> None:
    for name in ("notify-send", "osascript"):
        scenes.program(tmp_path / name)
    await Announcer(Notify(), tmp_path, environ(tmp_path, DISPLAY=":0")).announce("desktop", watch(), event())
    assert len(list(tmp_path.glob("*.called"))) == 1


def test_the_environment_is_small() -> None:
    names = ["PATH", "HOME", "LANG", "USER", "TMPDIR", "XDG_RUNTIME_DIR", "DISPLAY", "DBUS_SESSION_BUS_ADDRESS"]
    others = ["REMOTE_PASSWORD", "SSH_AUTH_SOCK", "LD_PRELOAD", "PYTHONPATH", "OPENAI_API_KEY"]
    assert list(program.clean_environment(dict.fromkeys([*names, *others], "x"))) == names

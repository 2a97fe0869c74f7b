"""Whatever our errors say, programs decide the same: most tests run once in our words and once in others."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote_sandbox_mcp.app import App, compose
from remote_sandbox_mcp.backends.opensandbox.order import PlatformRequest
from remote_sandbox_mcp.backends.opensandbox.problems import explained, sentence
from remote_sandbox_mcp.backends.opensandbox.provider import OpenSandboxProvider
from remote_sandbox_mcp.config.schema import Configuration
from remote_sandbox_mcp.core.commands.command import Running
from remote_sandbox_mcp.core.errors import (
    BadArgument,
    ConfigError,
    ConnectError,
    Defect,
    FileProblem,
    LostContact,
    NotStarted,
    SandboxError,
    UnknownSandbox,
    Unreachable,
    Unsupported,
)
from remote_sandbox_mcp.core.resources.checkup import Mark
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules, Platform, SandboxOrder, new_disposable_id
from remote_sandbox_mcp.core.sandboxes.files import Span
from remote_sandbox_mcp.core.sandboxes.machine import Machine
from remote_sandbox_mcp.core.sync.transfer import Listener, Order, Outcome, Place
from remote_sandbox_mcp.fronts.mcp.results import about_error, failure
from remote_sandbox_mcp.local.store.transfers import FAILED
from remote_sandbox_mcp.services.fleet import Fleet, Member
from remote_sandbox_mcp.services.probe.doctor import Visit, examine
from remote_sandbox_mcp.services.transfers.background import BackgroundTransfers
from tests.cli.conftest import Cli, at_a_terminal
from tests.support import rewording
from tests.support.disposable_house import House
from tests.support.fakes.sandbox import FakeSandbox
from tests.support.rewording import Words
from tests.support.sshd import Sshd, closed_port

NOTHING_LISTENS, CHECK_PORT = "nothing listens on that port", "check port, or whether sshd runs"


@pytest.fixture(params=[rewording.as_they_are, rewording.turned], ids=["our words", "other words"])
def words(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Words:
    """What a part of a sentence becomes."""
    if request.param is rewording.turned:
        monkeypatch.setattr(SandboxError, "__init__", rewording.init)
    found: Words = request.param
    return found


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


@pytest.fixture
def there(good: Sshd, tmp_path: Path) -> Path:
    """A folder on the machine with one file in it."""
    folder = good.home / f"there-{tmp_path.name}"
    subprocess.run(good.client(f"mkdir '{folder}'; echo old >'{folder}/file'"), check=True, timeout=10)
    return folder


# Machines


async def test_the_doctor_tells_the_step_what_was_found_and_what_to_do(words: Words, tmp_path: Path) -> None:
    with closed_port() as port:
        checkup = await examine(Visit(Machine("gpu1", "127.0.0.1", port), tmp_path / "known_hosts"))
    _, name, failed, *others = checkup.steps
    assert (name.mark, failed.name, failed.mark) == (Mark.OK, "port", Mark.FAILED)
    assert {step.mark for step in others} == {Mark.SKIPPED}
    remedy = words(CHECK_PORT)
    assert (failed.said, failed.remedy) == (words(NOTHING_LISTENS), remedy[0].upper() + remedy[1:])


async def test_a_list_tells_why_a_machine_does_not_answer_without_what_was_tried(words: Words) -> None:
    with closed_port() as port:
        app = compose(Configuration(machines=(Machine("gpu1", "127.0.0.1", port),)))
        (view,) = await app.survey.of_all()
        await app.close()
    assert (view.alive, view.cause) == (False, f"{words(NOTHING_LISTENS)}; {words(CHECK_PORT)}")
    assert view.trouble == words(f"unable to open gpu1 ([127.0.0.1]:{port}): {NOTHING_LISTENS}; {CHECK_PORT}")


# Syncs


def test_deleting_everything_needs_a_yes(
    cli: Cli, good: Sshd, there: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The words of the process itself, and not of a hub.
    monkeypatch.setenv("REMOTE_SANDBOX_NO_HUB", "1")
    cli.command = (sys.executable, "-m", rewording.__name__)
    push = ("push", "--delete", str(empty), str(there))
    refused = cli(*push)
    assert (refused.code, refused.stdout, len(list(there.iterdir()))) == (2, "", 1)
    assert refused.stderr.startswith("remote-sandbox-mcp: ⇅")
    seen = at_a_terminal(cli, *push, typed=b"y\n")
    danger = rewording.turned(f"{empty} is empty, so everything would be deleted")
    assert f"{danger}\r\nDelete 1 file and 0 folders there? [y/N] " in seen
    assert list(there.iterdir()) == []


async def test_a_transfer_fails_with_the_code_of_its_error(words: Words, tmp_path: Path) -> None:
    async def refuse(order: Order, listener: Listener) -> Outcome:
        raise BadArgument("no")

    transfers = BackgroundTransfers(tmp_path)
    order = Order(source=Place("", "/a"), target=Place("gpu1", "/b"))
    done = await transfers.begin(order, refuse, wait_s=10)
    await transfers.close()
    assert (done.status, done.code, done.error) == (FAILED, "bad_argument", words("no"))


# Files


async def test_a_file_that_has_changed_is_refused_once(words: Words) -> None:
    fake = FakeSandbox(files={"~/a": b"one"})

    async def opener() -> FakeSandbox:
        return fake

    app = App(Fleet([Member("fake", lambda: fake.description, opener)]))
    await app.files.read("~/a", Span())
    fake.files["/home/fake/a"] = b"another"
    with pytest.raises(FileProblem) as refusal:
        await app.files.write("~/a", b"two")
    assert refusal.value.reason == "stale"
    await app.files.write("~/a", b"two")
    await app.close()
    assert fake.files["/home/fake/a"] == b"two"


# Tools

RUN = "run-0123456789abcdef"


@pytest.mark.parametrize(
    ("make", "said", "about"),
    [
        pytest.param(lambda: NotStarted("no"), " (nothing was started)", {"code": "not_started"}, id="not started"),
        pytest.param(lambda: Defect("no"), "; it may have been started: look", {"code": "defect"}, id="defect"),
        pytest.param(lambda: Unreachable("no"), " (nothing was started)", {"outcome": "not_started"}, id="unreachable"),
        pytest.param(
            lambda: LostContact("no", outcome="not_started", so_far=Running(RUN)),
            " (nothing was started)",
            {"outcome": "not_started"},
            id="lost before it began",
        ),
        pytest.param(
            lambda: LostContact("no", outcome="unknown", so_far=Running(RUN)),
            f"; it may have been started: ask with check_background_task(tmux_session='{RUN}')",
            {"outcome": "unknown", "tmux_session": RUN},
            id="lost",
        ),
        pytest.param(
            lambda: LostContact.while_running("gpu1", "why", Running(RUN)),
            "",
            {"outcome": "unknown", "tmux_session": RUN},
            id="lost, and told how to ask",
        ),
    ],
)
def test_a_tool_tells_whether_anything_was_started(words: Words, make: Any, said: str, about: dict[str, str]) -> None:
    problem = make()
    answer = failure(problem, starts=True)
    (content,) = answer.content
    assert getattr(content, "text", "").removeprefix(str(problem)).startswith(said)
    assert (getattr(content, "text", "") == str(problem)) == (not said)
    assert about_error(answer).items() >= about.items()


# Disposable sandboxes


@pytest.mark.parametrize(
    ("failure", "left"),
    [pytest.param(BadArgument, None, id="refused"), pytest.param(Unreachable, "ending", id="nobody knows")],
)
async def test_what_could_not_be_made_is_looked_for_where_it_may_exist(
    words: Words, tmp_path: Path, failure: type[SandboxError], left: str | None
) -> None:
    house = House(tmp_path)
    house.provider.fail(failure("no"), "create")
    with pytest.raises(failure):
        await house.disposables.create(SandboxOrder(name="web"))
    kept = house.rows.living()
    await house.close()
    # Its name is free.
    assert [(it.disposable.status, it.disposable.name) for it in kept] == ([(left, "")] if left else [])


async def test_what_has_expired_is_known_as_that(words: Words, tmp_path: Path) -> None:
    house = House(tmp_path)
    made = await house.disposables.create(SandboxOrder(name="web", timeout_s=60))
    sandbox = await house.fleet.get("web")
    house.pass_time(100)
    with pytest.raises(ConnectError):
        await sandbox.list("/")
    row = house.row(made.id)
    with pytest.raises(UnknownSandbox):
        house.fleet.member("web")
    await house.close()
    assert (row.disposable.status, row.why) == ("expired", "expired")


def of_platform(status: int, code: str, message: str) -> Any:
    from opensandbox.exceptions import SandboxApiException
    from opensandbox.exceptions import SandboxError as Said

    return SandboxApiException(f"HTTP {status}", status_code=status, error=Said(code, message))


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        pytest.param("no basic auth credentials", ConfigError, id="its registry wants a login"),
        pytest.param("manifest unknown", BadArgument, id="nobody has it"),
    ],
)
def test_an_image_that_needs_a_login_is_told_from_one_that_is_not_there(
    words: Words, message: str, kind: type[SandboxError]
) -> None:
    problem = sentence("unable", of_platform(500, "DOCKER::IMAGE_PULL_FAILED", message))
    found = explained(problem, "unable", "registry.example.org/team/app", None)
    assert (type(problem), type(found), str(found) == str(problem)) == (BadArgument, kind, False)


class Without:
    """A platform that holds no network policy."""

    name = "the platform"
    platform = Platform(server_url="http://127.0.0.1:1")

    async def create(self, request: PlatformRequest, login: object, volumes: object, doing: str) -> str:
        if request.allowed_hosts is not None:
            raise sentence(doing, of_platform(400, "", "networkPolicy is not supported"))
        return "key"


@pytest.mark.parametrize("network", [None, False], ids=["nothing said", "off"])
async def test_a_network_that_must_be_off_is_never_on(words: Words, network: bool | None) -> None:
    provider = OpenSandboxProvider(Without.platform, DisposableRules(default_image="debian"), "mine")
    provider._link = Without()  # type: ignore[assignment]
    order = SandboxOrder(network=network)
    if network is None:
        assert (await provider.create(new_disposable_id(), order)).network
        return
    with pytest.raises(Unsupported):
        await provider.create(new_disposable_id(), replace(order, network=False))

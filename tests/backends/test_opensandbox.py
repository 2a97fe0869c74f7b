"""What an OpenSandbox platform gives beyond the contract: making, knowing again, keeping and reaching containers."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from remote_sandbox_mcp.backends.opensandbox import problems
from remote_sandbox_mcp.backends.opensandbox.api import policy
from remote_sandbox_mcp.backends.opensandbox.order import LABEL, MARK, label_name, mark_label, name_label, request_of
from remote_sandbox_mcp.backends.opensandbox.plain import PlainContainer
from remote_sandbox_mcp.backends.opensandbox.provider import OpenSandboxProvider
from remote_sandbox_mcp.core.commands.command import Command, Completed, Running
from remote_sandbox_mcp.core.commands.shell import quote
from remote_sandbox_mcp.core.errors import (
    BadArgument,
    ConfigError,
    ConnectError,
    FileProblem,
    LoginRefused,
    SandboxError,
    UnknownSandbox,
    Unsupported,
)
from remote_sandbox_mcp.core.sandboxes.disposable import (
    Disposable,
    DisposableRules,
    Limits,
    NeedsHeaders,
    SandboxOrder,
    Volume,
    new_disposable_id,
)
from remote_sandbox_mcp.core.sandboxes.files import Search, Span
from remote_sandbox_mcp.core.sandboxes.sandbox import Sandbox
from remote_sandbox_mcp.core.sandboxes.secret import Secret
from tests.backends.contract import finish
from tests.backends.contract.basics import said
from tests.support.pace import at_most
from tests.support.platform import API_KEY, EXECD, IMAGE, WITHOUT_PYTHON, Platform, free_port
from tests.support.waiting import eventually

# The first of them waits for the platform to come up.
pytestmark = [pytest.mark.xdist_group("platform"), pytest.mark.timeout(180)]
RULES = DisposableRules(default_image=IMAGE)


@asynccontextmanager
async def made(provider: OpenSandboxProvider, **fields: Any) -> AsyncIterator[Disposable]:
    found = await provider.create(new_disposable_id(), SandboxOrder(**{"network": True, **fields}))
    try:
        yield found
    finally:
        await provider.delete(found)


@pytest.fixture(scope="module")
async def one(provider: OpenSandboxProvider) -> AsyncIterator[Disposable]:
    """A container for tests that leave it as it is."""
    order = {
        "name": "eins & zwei",
        "env": {"GREETING": "hello"},
        "limits": Limits(cpu=0.5, memory_mb=256),
    }
    async with made(provider, **order) as found:
        yield found


@pytest.fixture(scope="module")
async def opened(provider: OpenSandboxProvider, one: Disposable) -> AsyncIterator[Sandbox]:
    sandbox = await provider.open(one)
    yield sandbox
    await sandbox.close()


# Making


async def test_a_container_is_as_it_was_ordered(opened: Sandbox, one: Disposable) -> None:
    assert await said(opened, "echo $GREETING; id -un") == b"hello\nagent\n"
    assert (one.status, one.image, one.provider, opened.description.name) == (
        "running",
        IMAGE,
        "opensandbox",
        "eins & zwei",
    )
    assert one.limits.told == ("cpu 500m: held by the platform", "memory 256Mi: held by the platform")
    assert one.notes == ()


async def test_limits_reach_the_engine(platform: Platform, one: Disposable) -> None:
    shown = platform.engine.docker("inspect", "--format={{json .HostConfig}}", platform.container_of(one.key)).stdout
    config = json.loads(shown)
    assert (config["Memory"], config["NanoCpus"]) == (256 << 20, 500_000_000)


async def test_the_key_of_the_platform_does_not_reach_a_container(
    opened: Sandbox, platform: Platform, one: Disposable
) -> None:
    seen = await finish(opened, "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'", keep=1 << 20)
    assert API_KEY.encode() not in seen.stdout.head
    assert API_KEY not in platform.engine.docker("inspect", platform.container_of(one.key)).stdout


async def test_a_network_that_cannot_be_closed_is_reported(provider: OpenSandboxProvider) -> None:
    async with made(provider, network=None) as found:
        assert "no egress control" in " ".join(found.notes)
        assert found.network


async def test_the_shortest_lifetime_is_reported(provider: OpenSandboxProvider) -> None:
    async with made(provider, timeout_s=5) as found:
        assert "60 s" in " ".join(found.notes)
        assert 50 < found.expires - time.time() < 61


async def test_a_folder_of_the_machine_is_seen_where_the_platform_allows_it(
    provider: OpenSandboxProvider, platform: Platform
) -> None:
    shared = platform.folder / "shared"
    shared.mkdir(exist_ok=True)
    (shared / "file").write_text("from outside\n")
    async with made(provider, volumes=(Volume(str(shared), "/data"),)) as found:
        sandbox = await provider.open(found)
        assert await said(sandbox, "cat /data/file") == b"from outside\n"
        assert (await finish(sandbox, "touch /data/mine")).exit_code != 0
        await sandbox.close()


REFUSALS: dict[str, tuple[dict[str, Any], type[SandboxError], str]] = {
    "no such image": ({"image": "nobody/has-this:1"}, BadArgument, "cannot get that image"),
    "no such snapshot": ({"image": "snapshot:none"}, SandboxError, "unable to create a sandbox from snapshot:none"),
    "volume": ({"volumes": (Volume("/etc", "/data"),)}, BadArgument, "is not allowed to be mounted"),
    "too much": ({"limits": Limits(memory_mb=-1)}, BadArgument, "refuses"),
    "label": ({"metadata": {"a b": "c"}}, BadArgument, "refuses"),
}


@pytest.mark.parametrize(("fields", "kind", "words"), list(REFUSALS.values()), ids=list(REFUSALS))
async def test_a_refusal_is_a_sentence(
    provider: OpenSandboxProvider, fields: dict[str, Any], kind: type[SandboxError], words: str
) -> None:
    with pytest.raises(kind, match=words) as refusal:
        await provider.create(new_disposable_id(), SandboxOrder(**{"network": True, **fields}))
    assert "\n" not in str(refusal.value)
    assert refusal.value.__cause__ is None


async def test_a_container_that_does_not_get_ready_is_removed(platform: Platform) -> None:
    impatient = OpenSandboxProvider(replace(platform.settings(), ready_timeout_s=0.001), RULES, "tests")
    before = platform.containers()
    with pytest.raises(SandboxError, match="not ready in time"):
        await impatient.create(new_disposable_id(), SandboxOrder(network=True))
    assert platform.containers() == before
    await impatient.close()


async def test_a_wrong_key_is_reported_without_showing_it(platform: Platform) -> None:
    provider = OpenSandboxProvider(platform.settings(key="a-wrong-key"), RULES, "tests")
    with pytest.raises(LoginRefused, match=f"the platform at {platform.url} refused the API key") as refusal:
        await provider.list()
    assert "a-wrong-key" not in str(refusal.value)
    await provider.close()


def test_without_a_platform_there_is_no_provider(platform: Platform) -> None:
    with pytest.raises(ConfigError, match="no OpenSandbox platform"):
        OpenSandboxProvider(replace(platform.settings(), server_url=""), RULES, "tests")


async def test_without_an_image_nothing_is_made(platform: Platform) -> None:
    with pytest.raises(BadArgument, match="no image was named"):
        await OpenSandboxProvider(platform.settings(), DisposableRules(), "tests").create("sb-12345678", SandboxOrder())


# Knowing again


async def test_our_containers_are_found_again_after_a_restart(platform: Platform, one: Disposable) -> None:
    again = OpenSandboxProvider(platform.settings(), RULES, "tests")
    (found,) = [each for each in await again.list() if each.id == one.id]
    assert (found.key, found.name, found.image, found.network) == (one.key, one.name, IMAGE, True)
    assert abs(found.expires - one.expires) < 3
    sandbox = await again.open(found)
    assert await said(sandbox, "echo $GREETING") == b"hello\n"
    await sandbox.close()
    await again.close()


async def test_two_installations_do_not_see_or_touch_each_others_containers(
    platform: Platform, one: Disposable
) -> None:
    other = OpenSandboxProvider(platform.settings(), RULES, "somebody else")
    assert one.id not in [each.id for each in await other.list()]
    assert (await other.inspect(one)).status == "gone"
    for call in (other.delete, other.pause, other.snapshot, lambda found: other.renew(found, 100)):
        with pytest.raises(UnknownSandbox, match="another installation"):
            await call(one)
    assert platform.container_of(one.key)
    await other.close()


async def test_deleting_leaves_nothing_and_may_be_repeated(provider: OpenSandboxProvider, platform: Platform) -> None:
    async with made(provider) as found:
        assert platform.container_of(found.key)
    assert not platform.containers(f"label=opensandbox.io/id={found.key}")
    await provider.delete(found)
    assert (await provider.inspect(found)).status == "gone"
    for call in (provider.pause, provider.resume, provider.snapshot, lambda gone: provider.endpoint(gone, 80)):
        with pytest.raises(UnknownSandbox, match="it is gone"):
            await call(found)


# Keeping


async def test_a_life_can_be_renewed(provider: OpenSandboxProvider, one: Disposable) -> None:
    renewed = await provider.renew(one, 1234)
    assert abs(renewed.expires - time.time() - 1234) < 5
    assert abs((await provider.inspect(one)).expires - renewed.expires) < 2


async def test_a_paused_container_is_reported_and_goes_on_when_resumed(provider: OpenSandboxProvider) -> None:
    async with made(provider, name="sleeper") as found:
        sandbox = await provider.open(found)
        await sandbox.write("~/kept", b"1")
        paused = await provider.pause(found)
        assert (paused.status, (await provider.inspect(found)).status) == ("paused", "paused")
        with pytest.raises(SandboxError, match="sleeper: it is paused"):
            await provider.open(found)
        assert (await provider.resume(paused)).status == "running"
        assert (await sandbox.read("~/kept", Span())).data == b"1"
        await sandbox.close()


async def test_a_snapshot_is_an_image_for_others(provider: OpenSandboxProvider) -> None:
    async with made(provider) as found:
        sandbox = await provider.open(found)
        await sandbox.write("~/kept", b"in the snapshot")
        await sandbox.close()
        image = await provider.snapshot(found)
    async with made(provider, image=image) as restored:
        sandbox = await provider.open(restored)
        assert (await sandbox.read("~/kept", Span())).data == b"in the snapshot"
        assert restored.image == image
        await sandbox.close()


# Reaching

SERVE = "python3 -m http.server 8123 --bind 0.0.0.0 --directory /usr/share/git-core"


ECHO = "import socket; near = socket.create_server(('127.0.0.1', 8124)).accept()[0]; near.sendall(near.recv(99))"


@pytest.mark.parametrize("use_server_proxy", [False, True], ids=["direct", "server proxy"])
async def test_a_port_is_reached_by_its_endpoint(platform: Platform, one: Disposable, use_server_proxy: bool) -> None:
    provider = OpenSandboxProvider(platform.settings(use_server_proxy=use_server_proxy), RULES, "tests")
    sandbox = await provider.open(one)
    serving = await sandbox.run(Command(SERVE), patience_s=0.2)
    assert isinstance(serving, Running)
    url, needed = await address_of(provider, one, 8123)
    # Through the server, its key goes along: nothing that a person opens in a browser.
    assert needed == (("OPEN-SANDBOX-API-KEY",) if use_server_proxy else ())

    async def fetch() -> bytes:
        return await asyncio.to_thread(_get, url, dict.fromkeys(needed, API_KEY))

    await eventually(fetch, lambda page: b"templates" in page, "the page")
    await sandbox.stop(serving.run_id)
    await sandbox.close()
    await provider.close()


async def address_of(provider: OpenSandboxProvider, one: Disposable, port: int) -> tuple[str, tuple[str, ...]]:
    try:
        return await provider.endpoint(one, port), ()
    except NeedsHeaders as problem:
        return problem.url, problem.headers


def _get(url: str, headers: dict[str, str]) -> bytes:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            page: bytes = answer.read()
            return page
    except OSError as problem:
        return str(problem).encode()


async def test_a_port_is_reached_as_a_stream(opened: Sandbox) -> None:
    serving = await opened.run(Command(f"exec python3 -c {quote(ECHO)}"), patience_s=0.3)

    async def connect() -> Any:
        try:
            return await opened.connect(8124)
        except SandboxError:
            return None

    stream = await eventually(connect, bool, "the port to open")
    stream.write(b"over the relay")
    assert await stream.read() == b"over the relay"
    stream.close()
    await opened.stop(serving.run_id)


@pytest.mark.parametrize("port", [0, 70000])
async def test_a_number_that_is_no_port_is_refused(provider: OpenSandboxProvider, one: Disposable, port: int) -> None:
    with pytest.raises(BadArgument, match="1 to 65535"):
        await provider.endpoint(one, port)


async def test_commands_run_through_the_server_where_ports_cannot_be_reached(
    platform: Platform, one: Disposable
) -> None:
    provider = OpenSandboxProvider(platform.settings(use_server_proxy=True), RULES, "tests")
    sandbox = await provider.open(one)
    assert await said(sandbox, "echo through") == b"through\n"
    data = bytes(range(256)) * 4096
    await sandbox.write("~/large", data)
    assert (await sandbox.read("~/large", Span(limit=len(data)))).data == data
    await sandbox.close()
    await provider.close()


async def test_a_lane_opens_beside_others(opened: Sandbox) -> None:
    lanes = await asyncio.gather(*(opened.open_lane() for _ in range(3)))
    assert all(lane.is_alive for lane in lanes)
    await asyncio.gather(*(lane.close() for lane in lanes))


# Without Python


@pytest.fixture(scope="module")
async def plain(provider: OpenSandboxProvider) -> AsyncIterator[Sandbox]:
    async with made(provider, image=WITHOUT_PYTHON, name="bare") as found:
        sandbox = await provider.open(found)
        assert isinstance(sandbox, PlainContainer)
        yield sandbox
        await sandbox.close()


async def test_commands_run_without_python(plain: Sandbox) -> None:
    done = await finish(plain, "printf 'a\\0b'; printf no >&2; exit 3")
    assert (done.exit_code, done.stdout.head, done.stderr.head) == (3, b"a\0b", b"no")
    long = await finish(plain, "seq 1 20000", keep=100)
    assert (long.stdout.head[:4], long.stdout.tail[-6:], long.stdout.total) == (b"1\n2\n", b"20000\n", 108894)


async def test_a_timeout_is_real_without_python(plain: Sandbox) -> None:
    begun = time.monotonic()
    done = await finish(plain, "echo up; sleep 60", timeout_s=0.5)
    assert (done.ending.value, done.exit_code, done.stdout.head) == ("timed_out", 124, b"up\n")
    assert time.monotonic() - begun < at_most(8)
    assert await said(plain, "pgrep -fc '[s]leep 60' || :") == b"0\n"


async def test_a_run_that_outlasts_its_call_goes_on_without_python(plain: Sandbox) -> None:
    command = Command("echo begun; sleep 60")
    seen = await plain.run(command, patience_s=0.5)
    assert isinstance(seen, Running)
    stopped = await plain.stop(command.run_id)
    assert isinstance(stopped, Completed)
    assert (stopped.ending.value, stopped.stdout.head) == ("stopped", b"begun\n")


async def test_files_are_kept_without_python(plain: Sandbox) -> None:
    written = await plain.write("folder/it's a file", b"one\ntwo\n")
    assert (await plain.read("~/folder/it's a file", Span(line=2, lines=1))).data == b"two\n"
    with pytest.raises(FileProblem, match="has changed"):
        await plain.write("folder/it's a file", b"", expected="another version")
    again = await plain.write("folder/it's a file", b"three", expected=written.version)
    assert (again.created, again.version != written.version) == (False, True)
    assert [entry.size for entry in (await plain.list("folder")).entries] == [5]
    assert [match.line for match in (await plain.search(Search("folder", pattern="^th"))).matches] == [1]
    await said(plain, "ln -s /etc/passwd folder/link")
    with pytest.raises(FileProblem, match="symbolic link"):
        await plain.write("folder/link", b"")


async def test_a_path_is_never_taken_for_something_else_by_the_agent(plain: Sandbox) -> None:
    """The platform's agent puts the value of a variable in the place of its name in a path."""
    size = (1 << 20) + 100
    await said(plain, "mkdir -p '$HOME' ~/sub")
    for path, letter in (("~/file", b"a"), ("~/$HOME/file", b"b"), ("~/sub/$NOTHING", b"c"), ("~/sub/${HOME}", b"d")):
        await plain.write(path, letter * size)
        assert (await plain.read(path, Span(limit=2 * size))).data == letter * size
    assert (await plain.read("~/$HOME/file", Span(offset=10, limit=1 << 20))).data == b"b" * (1 << 20)
    assert await said(plain, "ls '$HOME' sub") == b"$HOME:\nfile\n\nsub:\n$NOTHING\n${HOME}\n"


@pytest.mark.parametrize("image", [IMAGE, WITHOUT_PYTHON])
async def test_an_agent_that_is_too_old_is_reported(
    provider: OpenSandboxProvider, platform: Platform, image: str
) -> None:
    if platform.execd != EXECD:
        pytest.skip("the agent of the platform's makers is as new as it is")
    async with made(provider, image=image, env={"EXECD_IS_OLD": "1"}) as found:
        told = rf"agent \(execd\) in it is too old; set execd_image .* {platform.url} to opensandbox/execd:v1\.0\.7 or"
        with pytest.raises(ConnectError, match=told):
            await (await provider.open(found)).open()


async def test_what_needs_python_says_so(plain: Sandbox) -> None:
    for call in (plain.open_lane(), plain.connect(80)):
        with pytest.raises(Unsupported, match="no python3 in the container"):
            await call


# The table and the values


def test_every_exception_of_the_sdk_is_in_the_table() -> None:
    from opensandbox import exceptions

    named = {
        name for name, found in vars(exceptions).items() if inspect.isclass(found) and issubclass(found, Exception)
    }
    assert named == set(problems.BY_CLASS)


def _answer(status: int, code: str, message: str = "words") -> Any:
    from opensandbox.exceptions import SandboxApiException, SandboxError

    return SandboxApiException(f"HTTP {status}", status_code=status, error=SandboxError(code, message))


SENTENCES = {
    "quota": (403, "KUBERNETES::QUOTA_EXCEEDED", "quota is used up"),
    "no room": (503, "KUBERNETES::POOL_CAPACITY_EXHAUSTED", "no room"),
    "gone": (404, "DOCKER::SANDBOX_NOT_FOUND", "it is gone"),
    "unauthorized": (401, "UNAUTHORIZED", "refused the API key"),
    "unsupported": (501, "SANDBOX::API_NOT_SUPPORTED", "cannot do that"),
    "busy": (429, "", "quota is used up"),
    "bad": (400, "SANDBOX::INVALID_PARAMETER", "refuses it .words"),
    "broken": (500, "SANDBOX::INTERNAL_ERROR", "failed .words"),
    "down": (502, "", "does not answer"),
}


@pytest.mark.parametrize(("status", "code", "words"), list(SENTENCES.values()), ids=list(SENTENCES))
def test_what_the_platform_says_becomes_our_sentence(status: int, code: str, words: str) -> None:
    problem = problems.sentence("unable to make it", _answer(status, code))
    assert str(problem).startswith("unable to make it: ")
    with pytest.raises(type(problem), match=words):
        raise problem


def test_a_full_disk_is_recognized_whatever_its_error_code() -> None:
    problem = _answer(500, "DOCKER::SANDBOX_START_FAILED", "write /x: no space left on device")
    assert "no room" in str(problems.sentence("unable to create a sandbox", problem))


@pytest.mark.parametrize("name", ["plain", "eins & zwei", "日本語 🎉", "x.y", "a" * 200, "-", ""], ids=str)
def test_a_name_is_a_label_and_comes_back(name: str) -> None:
    label = name_label(name)
    assert LABEL.match(label)
    back = label_name(label)
    assert name.startswith(back)
    assert back == name or len(name) > 45


def test_any_mark_is_a_label_of_its_own() -> None:
    marks = ["home", "user@host:/state", "user@host:/state2", "x" * 99]
    assert len({mark_label(mark) for mark in marks}) == 4
    assert all(LABEL.match(mark_label(mark)) for mark in marks)


def test_our_labels_win_over_those_of_an_order() -> None:
    order = SandboxOrder(metadata={MARK: "stolen", "team": "a"})
    labels = request_of("sb-12345678", order, RULES, "mine").labels
    assert (labels[MARK], labels["team"]) == ("mine", "a")


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [({}, ()), ({"network": True}, None), ({"network": True, "hosts": ("pypi.org",)}, ("pypi.org",))],
    ids=["off", "on", "some"],
)
def test_the_network_is_closed_unless_asked_for(fields: dict[str, Any], allowed: tuple[str, ...] | None) -> None:
    request = request_of("sb-12345678", SandboxOrder(**fields), RULES, "mine")
    assert request.allowed_hosts == allowed
    made = policy(request.allowed_hosts)
    assert made is None if allowed is None else (made.default_action, len(made.egress)) == ("deny", len(allowed))


def test_a_port_is_refused_because_no_rule_of_a_platform_has_one() -> None:
    with pytest.raises(Unsupported, match=r"write pypi\.org alone"):
        request_of("sb-12345678", SandboxOrder(network=True, hosts=("pypi.org:443",)), RULES, "mine")


def test_the_sdk_is_imported_when_it_is_first_needed(platform: Platform) -> None:
    script = (
        "import sys; from remote_sandbox_mcp.backends.opensandbox.provider import OpenSandboxProvider as P;"
        "from remote_sandbox_mcp.core.sandboxes.disposable import *;"
        "P(Platform(server_url='http://localhost:1'), DisposableRules(), 'm');"
        "print([name for name in ('opensandbox', 'httpx', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


async def test_nothing_of_the_sdk_is_logged(platform: Platform, caplog: pytest.LogCaptureFixture) -> None:
    settings = replace(platform.settings(free_port()), api_key=Secret("never-logged"))
    provider = OpenSandboxProvider(settings, RULES, "tests")
    with caplog.at_level(logging.DEBUG), pytest.raises(SandboxError, match="does not answer"):
        await provider.create(new_disposable_id(), SandboxOrder())
    assert [record.name for record in caplog.records if record.name.startswith(("opensandbox", "httpx"))] == []
    assert "never-logged" not in caplog.text
    await provider.close()

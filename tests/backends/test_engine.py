"""Containers on a machine that has an engine: made, limited, found again and removed by its own command line."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from remote_sandbox_mcp.backends.command.sandbox import open_behind
from remote_sandbox_mcp.backends.command.way import LocalCommand, MachineWay
from remote_sandbox_mcp.backends.engine import order as engine_order
from remote_sandbox_mcp.backends.engine.order import DEADLINE, ID, MARK, container_name, gpu_words, keeper, run_words
from remote_sandbox_mcp.backends.engine.provider import EngineProvider
from remote_sandbox_mcp.backends.ssh.machine import open_machine
from remote_sandbox_mcp.core.commands.command import Command, Completed, Environment
from remote_sandbox_mcp.core.errors import BadArgument, SandboxError, UnknownSandbox, Unreachable, Unsupported
from remote_sandbox_mcp.core.jobs.cards import CardRequest
from remote_sandbox_mcp.core.jobs.job import JobOrder, JobQuery, Jobs, NoCards
from remote_sandbox_mcp.core.sandboxes.disposable import (
    Disposable,
    DisposableRules,
    Limits,
    SandboxOrder,
    Volume,
    new_disposable_id,
)
from remote_sandbox_mcp.core.sandboxes.machine import Engine as MachineEngine
from remote_sandbox_mcp.core.sandboxes.sandbox import Description, Sandbox
from remote_sandbox_mcp.services.probe.doctor import Visit, examine
from tests.backends.contract import Opener, PythonContract
from tests.support.cards import StandInCards, stand_in_cards
from tests.support.disposables import ORDINARY_USER
from tests.support.engine_place import NO_SHELL, PLAIN, WITH_PYTHON, Place
from tests.support.means import require_program
from tests.support.openssh import open_it, over_openssh
from tests.support.pace import Deadline
from tests.support.podman import PodmanContainer
from tests.support.root import as_root
from tests.support.server import entry, serve, until
from tests.support.sshd import Sshd

pytestmark = [pytest.mark.xdist_group("engine"), pytest.mark.timeout(240)]

# Few processes and little memory: what goes wrong in a test stays small, too.
SMALL = Limits(cpu=1, memory_mb=96, processes=48)


@pytest.fixture(scope="module")
def place(engine_place: Place) -> Place:
    return engine_place


@pytest.fixture
async def provider(place: Place, tmp_path: Path) -> AsyncIterator[EngineProvider]:
    """On the machine's connection; when the test is over, nothing is left in the engine."""
    machine = await open_machine(place.sshd.machine(), tmp_path / "known_hosts")
    made = engine_on(machine, place.words, mark=tmp_path.name)
    yield made
    await made.close()
    await machine.close()
    await until(lambda: not place.left(), "the engine to be empty", 15)


def engine_on(machine: Sandbox, words: tuple[str, ...], mark: str, *, beyond_walls: bool = False) -> EngineProvider:
    async def opened() -> Sandbox:
        return machine

    engine, way = MachineEngine("docker", words), MachineWay("gpu1", opened, walled=not beyond_walls)
    return EngineProvider("gpu1", engine, way, DisposableRules(), mark, beyond_walls=beyond_walls)


async def make(provider: EngineProvider, **order: object) -> Disposable:
    given = {"image": WITH_PYTHON, "limits": SMALL, "timeout_s": 120.0} | order
    return await provider.create(new_disposable_id(), SandboxOrder(**given))  # type: ignore[arg-type]


async def say(sandbox: Sandbox, script: str, timeout_s: float = 30.0) -> str:
    seen = await sandbox.run(Command(script, timeout_s=timeout_s))
    assert isinstance(seen, Completed)
    return seen.stdout.head.decode() + seen.stderr.head.decode()


async def test_a_container_has_its_limits_and_no_way_to_the_machine(provider: EngineProvider, place: Place) -> None:
    secret = 'it\'s "secret" $HOME'
    made = await make(provider, env={"TOKEN": secret, "PATH": "/bin:/usr/bin"}, name="box")
    sandbox = await provider.open(made)
    try:
        assert await say(sandbox, 'printf %s "$TOKEN"') == secret
        # CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, NET_BIND_SERVICE, SYS_CHROOT
        status = await say(sandbox, "grep -E '^(CapBnd|NoNewPrivs)' /proc/self/status")
        assert status.split() == ["CapBnd:", "00000000000404fb", "NoNewPrivs:", "1"]
        assert await say(sandbox, "ls /sys/class/net") == "lo\n"
        assert "No such file" in await say(sandbox, "ls /var/run/docker.sock /run/docker.sock")
        assert "Operation not permitted" in await say(sandbox, "mknod /tmp/disk b 8 0; mount -t proc proc /tmp")
        await provider.renew(made, 5000)
        now, until_then = map(float, (await say(sandbox, f"cut -d' ' -f1 /proc/uptime; cat {DEADLINE}")).split())
        assert 4990 < until_then - now < 5001
        assert sandbox.description.capabilities.on_machine == "gpu1"
    finally:
        await sandbox.close()
    config = place.inspect(made.key)["HostConfig"]
    assert isinstance(config, dict)
    held = {name: config[name] for name in ("Memory", "MemorySwap", "NanoCpus", "PidsLimit", "Binds", "Privileged")}
    assert held == {
        "Memory": 96 << 20,
        "MemorySwap": 96 << 20,
        "NanoCpus": 10**9,
        "PidsLimit": 48,
        "Binds": None,
        "Privileged": False,
    }
    assert [it.id for it in await provider.list()] == [made.id]
    await provider.delete(made)
    assert (await provider.inspect(made)).status == "gone"
    await provider.delete(made)


async def test_a_fork_bomb_and_a_memory_hog_stay_inside(provider: EngineProvider) -> None:
    made = await make(provider, image=PLAIN)
    sandbox = await provider.open(made)
    try:
        bomb = "bomb() { bomb | bomb & }; bomb; sleep 1; echo over"
        with suppress(SandboxError):
            await say(sandbox, bomb, timeout_s=3)
        hog = "dd if=/dev/zero of=/dev/null bs=300M count=1; echo ended $?"

        async def survived() -> bool:
            with suppress(SandboxError):
                return "ended 137" in await say(sandbox, hog, timeout_s=5)
            return False

        await until(survived, "the container to answer again", 20)
        assert (await provider.inspect(made)).status == "running"
    finally:
        await sandbox.close()
        await provider.delete(made)


async def test_twenty_are_made_at_once_and_all_are_removed(provider: EngineProvider) -> None:
    made = await asyncio.gather(*(make(provider, image=PLAIN) for _ in range(20)))
    assert {it.id for it in await provider.list()} == {it.id for it in made}
    await asyncio.gather(*map(provider.delete, made))
    assert list(await provider.list()) == []


async def test_nothing_is_left_where_the_connection_is_cut_while_containers_are_made(
    provider: EngineProvider, place: Place
) -> None:
    """The engine goes on with what it was asked for; the end of the fixture waits until it has nothing any more."""
    making = [asyncio.ensure_future(make(provider, image=PLAIN)) for _ in range(3)]
    await until(place.left, "the first to appear", 15)
    place.sshd.kill_sessions()
    for made in await asyncio.gather(*making, return_exceptions=True):
        if isinstance(made, Disposable):
            await provider.delete(made)
        else:
            assert isinstance(made, Unreachable), made
    await until(lambda: not place.left(), "what was given up to be removed", 20)


async def test_a_container_whose_time_is_over_is_gone_without_us(provider: EngineProvider, place: Place) -> None:
    made = await make(provider, image=PLAIN, timeout_s=3.0)
    await until(lambda: not place.left(), "it to end by itself", 15)
    assert (await provider.inspect(made)).status == "expired"


async def test_containers_of_others_are_not_touched_whatever_their_labels(
    provider: EngineProvider, place: Place, tmp_path: Path
) -> None:
    made = await make(provider, image=PLAIN)
    labels = (f"--label={MARK}={tmp_path.name}", f"--label={ID}={made.id}")
    forged = place.engine.run(PLAIN, "sleep", "600", options=labels)
    key = str(place.inspect(forged.name)["Id"])
    try:
        assert [it.key for it in await provider.list()] == [made.key]
        stolen = Disposable(id=made.id, provider=made.provider, key=key)
        with pytest.raises(UnknownSandbox, match="belongs to somebody else, and is left alone"):
            await provider.delete(stolen)
        assert (await provider.inspect(stolen)).status == "gone"
        # Of another installation of ours.
        other = place.engine.run(PLAIN, "sleep", "600", options=(f"--label={MARK}=other", f"--label={ID}={made.id}"))
        await provider.delete(made)
        assert {place.inspect(it.name)["Id"] for it in (forged, other)} > {key}
        other.remove()
    finally:
        forged.remove()


async def test_a_volume_outlives_its_containers_and_unnamed_ones_do_not(provider: EngineProvider, place: Place) -> None:
    volumes = (Volume("remote-sandbox-cache", "/cache", read_only=False),)
    for script, said in (("echo kept >/cache/file; cat /cache/file", "kept\n"), ("cat /cache/file", "kept\n")):
        made = await make(provider, image=PLAIN, volumes=volumes)
        sandbox = await provider.open(made)
        assert await say(sandbox, script) == said
        await sandbox.close()
        await provider.delete(made)
    assert place.left() == ["remote-sandbox-cache"]
    place.engine.docker("volume", "rm", "remote-sandbox-cache")


async def opened_by_openssh(sshd: Sshd, known_hosts: Path) -> Sandbox:
    way = LocalCommand(sshd.client("")[:-1], dict(os.environ))
    return await open_behind(way, Description("gpu1", "ssh"), Environment())


async def opened_without_python(sshd: Sshd, known_hosts: Path) -> Sandbox:
    return await open_machine(sshd.machine(python="/nowhere/python3"), known_hosts)


@pytest.mark.parametrize("opener", [opened_by_openssh, opened_without_python])
async def test_containers_are_reached_over_every_kind_of_connection_to_their_machine(
    opener: Callable[[Sshd, Path], Awaitable[Sandbox]], place: Place, tmp_path: Path
) -> None:
    machine = await opener(place.sshd, tmp_path / "known_hosts")
    provider = engine_on(machine, place.words, tmp_path.name)
    made = await make(provider)
    sandbox = await provider.open(made)
    assert await say(sandbox, "echo here") == "here\n"
    await sandbox.close()
    await provider.delete(made)
    await provider.close()
    await machine.close()
    assert place.left() == []


async def test_a_container_is_paused_and_resumed(provider: EngineProvider) -> None:
    made = await make(provider, image=PLAIN)
    assert (await provider.pause(made)).status == "paused"
    with pytest.raises(SandboxError, match="it is paused; continue it with resume_sandbox"):
        await provider.renew(made, 60)
    assert (await provider.resume(made)).status == "running"
    await provider.renew(made, 60)
    await provider.delete(made)


HOSTILE = {
    "option as image": {"image": "--privileged"},
    "short option": {"image": "-v/:/host"},
    "blanks": {"image": "plain:1 --privileged"},
    "line break": {"image": "plain:1\n--privileged"},
    "shell": {"image": "$(reboot)"},
    "folder": {"image": "/etc"},
    "folder of the machine": {"volumes": (Volume("/etc", "/x"),)},
    "volume of others": {"volumes": (Volume("postgres-data", "/x"),)},
    "another mount in a target": {"volumes": (Volume("remote-sandbox-a", "/x,type=bind,source=/"),)},
    "another mount in a source": {"volumes": (Volume("remote-sandbox-a,type=bind,source=/", "/x"),)},
    "up and away": {"volumes": (Volume("remote-sandbox-a", "/x/../../proc"),)},
    "card": {"limits": Limits(cards=("0,all",))},
    "all cards": {"limits": Limits(cards=("all",))},
    "variable of two lines": {"env": {"A": "1\nLD_PRELOAD=/x"}},
    "memory of nothing": {"limits": Limits(memory_mb=1)},
}


@pytest.mark.parametrize("order", HOSTILE.values(), ids=HOSTILE)
async def test_an_order_that_says_more_than_it_may_is_refused_before_the_machine_is_asked(
    order: dict[str, object], tmp_path: Path
) -> None:
    def never() -> Sandbox:
        raise AssertionError("the machine was asked")

    way = MachineWay("gpu1", never)  # type: ignore[arg-type]
    provider = EngineProvider("gpu1", MachineEngine("docker", ("docker",)), way, DisposableRules(), "mark")
    with pytest.raises(BadArgument):
        await make(provider, **order)
    with pytest.raises(Unsupported, match="cannot narrow a network"):
        await make(provider, hosts=("example.org",))


NETWORKS = {
    "nothing said": ("docker", None, "--network=none"),
    "off": ("podman", False, "--network=none"),
    "docker's own": ("docker", True, "--network=bridge"),
    "podman's own": ("podman", True, "--network=private"),
}


@pytest.mark.parametrize(("tool", "asked", "word"), NETWORKS.values(), ids=NETWORKS)
def test_a_network_is_off_unless_asked_for_and_never_the_machines(tool: str, asked: bool | None, word: str) -> None:
    order = SandboxOrder(image=PLAIN, network=asked, limits=SMALL)
    words = run_words(MachineEngine(tool, (tool,)), new_disposable_id(), order, "mark")
    assert [given for given in words if given.startswith("--network")] == [word]


async def test_a_name_that_looks_like_an_option_is_a_label_and_nothing_else(
    provider: EngineProvider, place: Place
) -> None:
    made = await make(provider, image=PLAIN, name="--privileged -v /:/host $(id) 'x'")
    (listed,) = await provider.list()
    assert listed.name == "--privileged -v /:/host $(id) 'x'"
    assert place.inspect(made.key)["Name"] == f"/{container_name(made.id)}"
    await provider.delete(made)


async def test_a_missing_image_or_one_without_a_shell_is_reported_in_one_sentence(provider: EngineProvider) -> None:
    with pytest.raises(SandboxError, match=f"^unable to create a sandbox from {NO_SHELL} on gpu1: no shell runs in it"):
        await make(provider, image=NO_SHELL)
    with pytest.raises(
        SandboxError, match=r"^unable to create a sandbox from nowhere.example.org/x:1 on gpu1: the ima"
    ):
        await make(provider, image="nowhere.example.org/x:1")


async def test_an_error_says_what_to_do_if_the_user_may_not_use_the_engine(
    provider: EngineProvider, place: Place, tmp_path: Path
) -> None:
    closed = place.engine.folder / "closed"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(closed))
        closed.chmod(0o600)
        machine = await open_machine(place.sshd.machine(), tmp_path / "known_hosts")
        try:
            refused = engine_on(machine, ("docker", f"--host=unix://{closed}"), "mark")
            with pytest.raises(SandboxError, match=r"the user on gpu1 may not talk to its docker; ask for membership"):
                await make(refused)
            missing = engine_on(machine, ("no-such-engine",), "mark")
            with pytest.raises(SandboxError, match="there is no no-such-engine on gpu1; install docker there"):
                await make(missing)
        finally:
            await machine.close()


async def test_doctor_finds_the_engine_and_says_what_to_do(place: Place, tmp_path: Path) -> None:
    engines = [MachineEngine("docker", place.words), MachineEngine("docker", ("docker", "--host=unix:///nowhere"))]
    said = []
    for engine in engines:
        report = await examine(Visit(place.sshd.machine(engine=engine), tmp_path / "known_hosts"))
        said.append({step.name: step for step in report.steps}["containers"])
    assert said[0].said.endswith("; sandboxes are made with it: create_sandbox(on='gpu1')")
    assert (said[1].said, said[1].remedy) == (
        "no sandboxes can be made: docker does not run on gpu1",
        "Start it: systemctl start docker",
    )


GPUS = {
    "one card": (Limits(gpus=1, cards=("1",)), '--gpus="device=1"'),
    "two cards": (Limits(gpus=2, cards=("0", "2")), '--gpus="device=0,2"'),
    "by id": (Limits(gpus=1, cards=("GPU-3a2b",)), '--gpus="device=GPU-3a2b"'),
    "a number": (Limits(gpus=2), "--gpus=2"),
}


@pytest.mark.parametrize(("limits", "word"), GPUS.values(), ids=GPUS)
def test_docker_understands_how_gpus_are_named(limits: Limits, word: str, place: Place) -> None:
    """There is no card here: what fails is the engine, which looks for one, and not the reading of the words."""
    engine = MachineEngine("docker", place.words)
    assert gpu_words(engine, limits) == [word]
    order = SandboxOrder(
        image=PLAIN, limits=Limits(cpu=1, memory_mb=64, processes=20, gpus=limits.gpus, cards=limits.cards)
    )
    words = run_words(engine, new_disposable_id(), order, "mark")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "could not select device driver" in done.stderr, done
    place.engine.docker("container", "prune", "--force")


KEEPERS = {"dash": ["dash"], "busybox": ["busybox", "sh"]}


@pytest.mark.parametrize("shell", KEEPERS.values(), ids=KEEPERS)
def test_the_keeper_ends_in_time_where_no_process_can_be_started(shell: list[str], tmp_path: Path) -> None:
    require_program(shell[0])
    # A user who has a process already could not even start this one.
    user = ORDINARY_USER + os.getpid()

    def without_processes() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        if os.geteuid() == 0:
            os.setgid(user)
            os.setuid(user)

    begun = time.monotonic()
    words = [*shell, "-c", 'eval "$0"', keeper(), "+1", "/nowhere/deadline"]
    done = subprocess.run(words, preexec_fn=without_processes, capture_output=True, timeout=20, check=False)
    assert (done.returncode, 0.0 < time.monotonic() - begun < 10) == (0, True), done


async def test_all_tools_work_on_a_container_and_the_next_server_finds_it(place: Place, tmp_path: Path) -> None:
    """The real client and server: made on a machine, used, lost with a killed server, found again, thrown away."""
    machines = (entry(place.sshd, docker=list(place.words)), entry(place.sshd, name="gpu2"))
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_text("synced\n")
    async with serve(tmp_path, *machines, hub=False) as server:
        made = await server.call(
            "create_sandbox", on="gpu1", image=WITH_PYTHON, name="box", cpu=1, memory="96m", timeout=3600
        )
        assert (made["provider"], made["on"], made["network"]) == ("docker", "gpu1", False)
        assert await server.output("echo $((6 * 7))", sandbox_name="box") == "42\n"
        await server.call("write_remote_file", remote_path="/root/a", content="first\n", sandbox_name="box")
        await server.call(
            "sync_local_to_remote", local_path=str(tmp_path / "tree"), remote_path="/root/tree", sandbox_name="box"
        )
        started = await server.call(
            "exec_bash_background", command="sleep 600", session_name="work", watch=False, sandbox_name="box"
        )
        assert started["status"] == "started"
        refused = await server.fail("create_sandbox", on="gpu2", image=PLAIN)
        assert (
            "no sandboxes are made on gpu2; the owner of an SSH machine allows them by docker = true"
            in refused["error"]
        )
        unknown = await server.fail("create_sandbox", on="mars", image=PLAIN)
        assert unknown["error"].startswith("on: there is no place 'mars'; there are: embedded, gpu1")
        await server.call("create_sandbox", on="gpu1", image=PLAIN, timeout=4)
        os.kill(server.pid, signal.SIGKILL)
    async with serve(tmp_path, *machines, hub=False) as server:
        assert await server.output("cat a tree/file", sandbox_name="box", cwd="/root") == "first\nsynced\n"
        job = await server.call("check_background_task", tmux_session="work", sandbox_name="box")
        assert job["running"] is True
        listed = {it["name"]: it for it in (await server.call("list_sandboxes"))["sandboxes"]}
        assert (listed["box"]["kind"], listed["box"]["host"], listed["box"]["status"]) == ("docker", "gpu1", "running")
        await until(lambda: len(place.left()) == 1, "the one of four seconds to end by itself", 15)
        await server.call("delete_sandbox", sandbox_id="box")
        assert place.left() == []


class TestPython(PythonContract):
    """run_python in a container of an engine."""

    @pytest.fixture(scope="class")
    @classmethod
    async def opener(cls, place: Place, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Opener]:
        machine = await open_machine(place.sshd.machine(), tmp_path_factory.mktemp("python") / "known_hosts")
        provider = engine_on(machine, place.words, "python")
        made = await make(provider, timeout_s=240.0)

        async def open_it(environment: Environment) -> Sandbox:
            return await provider.open(made)

        yield open_it
        await provider.delete(made)
        await provider.close()
        await machine.close()
        await until(lambda: not place.left(), "the engine to be empty", 15)


@pytest.fixture
def podman(place: Place) -> Iterator[tuple[str, ...]]:
    """The words of a podman whose folders nobody else has, with limits that this machine can grant."""
    container = PodmanContainer()
    settings = container.folder / "containers.conf"
    settings.write_text('[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n')
    _, *options = container.command[len(as_root()) :]
    words = (*as_root("env", f"CONTAINERS_CONF={settings}", "podman"), *options, "--storage-driver=vfs")
    try:
        subprocess.run([*words, "import", "--quiet", str(place.tar), f"localhost/{PLAIN}"], check=True, timeout=60)
        yield words
    finally:
        subprocess.run([*words, "rm", "--all", "--force", "--time=0"], capture_output=True, check=False)
        container.__exit__()


def listed_by(podman: tuple[str, ...]) -> bytes:
    return subprocess.run([*podman, "ps", "--all", "--quiet"], capture_output=True, check=True).stdout


async def test_podman_makes_runs_and_removes_containers(podman: tuple[str, ...]) -> None:
    """As root, on this machine: without packages for user namespaces no other user can run it here."""
    way = LocalCommand(["/bin/sh", "-c"], dict(os.environ))
    provider = EngineProvider("gpu1", MachineEngine("podman", podman), way, DisposableRules(), "mark")
    image = f"localhost/{PLAIN}"
    made = await make(provider, image=image, env={"TOKEN": "it's"})
    sandbox = await provider.open(made)
    said = await say(sandbox, "echo $TOKEN; ls /sys/class/net; grep -E '^(CapBnd|NoNewPrivs)' /proc/self/status")
    assert said.split() == ["it's", "lo", "CapBnd:", "00000000000404fb", "NoNewPrivs:", "1"]
    assert (await provider.renew(made, 60)).expires > time.time() + 50
    assert [it.id for it in await provider.list()] == [made.id]
    await sandbox.close()
    await provider.delete(made)
    assert (await provider.inspect(made)).status == "gone"
    with pytest.raises(SandboxError, match=r"CDI devices nvidia\.com/gpu=1"):
        await make(provider, image=image, limits=Limits(gpus=1, cards=("1",)))
    assert not listed_by(podman)
    await provider.close()


# Cards


@pytest.fixture
def cards(place: Place) -> Iterator[StandInCards]:
    """One card, of which the machine's user is told."""
    with stand_in_cards(place.sshd.folder / f"cards-{os.urandom(4).hex()}", 1) as cards:
        (place.sshd.home / ".bashrc").write_text(f"PATH={cards.bin}:$PATH; export PATH\n")
        yield cards
        (place.sshd.home / ".bashrc").write_text("")


@pytest.fixture
async def leasing(cards: StandInCards, place: Place, tmp_path: Path) -> AsyncIterator[tuple[EngineProvider, Sandbox]]:
    machine = await open_machine(place.sshd.machine(), tmp_path / "known_hosts")

    async def jobs() -> Jobs:
        return machine.jobs

    made = engine_on(machine, place.words, mark=tmp_path.name)
    made._jobs = jobs
    yield made, machine
    await made.close()
    await machine.close()


async def test_a_container_that_could_not_be_made_holds_no_card(
    leasing: tuple[EngineProvider, Sandbox], cards: StandInCards
) -> None:
    """There is no driver here, so the engine refuses; the card, which it was told by its UUID, is free afterwards."""
    provider, machine = leasing
    wanted = replace(SMALL, gpus=1)
    for _ in range(2):
        with pytest.raises(SandboxError, match="could not select device driver"):
            await make(provider, limits=wanted)
    held = await machine.jobs.start(JobOrder(session="mine", script="sleep 60", cards=CardRequest(1)))
    assert held.cards == tuple(cards.uuids)
    with pytest.raises(NoCards, match="1 GPU cannot be had now: 0 of 1 are free"):
        await make(provider, limits=wanted)
    await machine.jobs.stop(JobQuery(job_id=held.job_id), grace_s=1)
    with pytest.raises(NoCards, match="1 GPU with 200000 MB free cannot be had now"):
        await make(provider, limits=replace(wanted, gpu_memory_mb=200_000))


async def test_a_container_holds_its_cards_as_long_as_it_lives(
    leasing: tuple[EngineProvider, Sandbox], cards: StandInCards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an engine that takes the cards off the words, because it has none to give."""
    monkeypatch.setattr(engine_order, "gpu_words", lambda engine, limits: [f"--label=cards={','.join(limits.cards)}"])
    provider, machine = leasing
    made = await make(provider, limits=replace(SMALL, gpus=1))
    assert made.limits.cards == tuple(cards.uuids)
    with pytest.raises(NoCards) as refused:
        await machine.jobs.start(JobOrder(session="mine", script="sleep 60", cards=CardRequest(1)))
    assert f"(job sandbox-{made.id})" in refused.value.busy[0]
    await provider.delete(made)
    deadline = Deadline(60)
    while True:
        try:
            await machine.jobs.start(JobOrder(session="mine", script="true", cards=CardRequest(1)))
            return
        except NoCards:
            assert not deadline.has_passed()


# Where only some folders of the machine may be written


@pytest.fixture(params=["our own line", "OpenSSH's client"])
async def walled(
    request: pytest.FixtureRequest, place: Place, tmp_path: Path
) -> AsyncIterator[tuple[EngineProvider, Sandbox]]:
    """The engine of a machine with walls; a login there looks for programs in a folder that the agent may write."""
    (place.sshd.home / "project").mkdir(exist_ok=True)
    os.chown(place.sshd.home / "project", place.sshd.uid, place.sshd.uid)
    profile = place.sshd.home / ".profile"
    profile.write_text("PATH=~/project:$PATH\n")
    known_hosts, machine = tmp_path / "known_hosts", place.sshd.machine(writable=("~/project",))
    if request.param == "our own line":
        opened: Sandbox = await open_machine(machine, known_hosts)
    else:
        options = ("-o", "StrictHostKeyChecking=accept-new", "-o", f"UserKnownHostsFile={known_hosts}")
        opened = await open_it(over_openssh(place.sshd, options=options, writable=machine.writable), known_hosts)
    made = engine_on(opened, place.words, mark=tmp_path.name, beyond_walls=True)
    yield made, opened
    await made.close()
    await opened.close()
    profile.unlink()
    shutil.rmtree(place.sshd.home / "project")
    await until(lambda: not place.left(), "the engine to be empty", 15)


async def test_within_walls_only_we_reach_the_engine(walled: tuple[EngineProvider, Sandbox], place: Place) -> None:
    provider, machine = walled
    assert "denied" in await say(machine, f"docker --host={place.engine.socket} ps")
    # What a login would find first is the agent's.
    plant = "printf '#!/bin/sh\\ntouch ~/ran\\n' >~/project/docker; cp ~/project/docker ~/project/bash"
    await say(machine, f"{plant}; chmod +x ~/project/*")
    made = await make(provider)
    sandbox = await provider.open(made)
    assert await say(sandbox, "echo mine >/tmp/mine; cat /tmp/mine; ls /sys/class/net") == "mine\nlo\n"
    await sandbox.close()
    assert [seen.id for seen in await provider.list()] == [made.id]
    await provider.delete(made)
    assert not (place.sshd.home / "ran").exists()
    mounts = ("/", "/proc", "/var/run/docker.sock", "~/project", str(place.sshd.home / "project"), "..")
    for source in mounts:
        with pytest.raises(BadArgument, match="cannot be mounted"):
            await make(provider, volumes=(Volume(source, "/x"),))


PAST_WALLS = {
    "a network": {"network": True},
    "cards that nobody holds": {"limits": replace(SMALL, gpus=1)},
    "a volume": {"volumes": (Volume("remote-sandbox-x", "/x", read_only=False),)},
}


@pytest.mark.parametrize("order", PAST_WALLS.values(), ids=PAST_WALLS)
async def test_what_leads_past_the_walls_is_refused(
    walled: tuple[EngineProvider, Sandbox], place: Place, order: dict[str, object]
) -> None:
    with pytest.raises(Unsupported, match="on gpu1 only some folders may be written") as refused:
        await make(walled[0], **order)
    assert "\n" not in str(refused.value)
    assert not place.left()


async def test_a_volume_that_may_only_be_read_is_neither_written_nor_filled(
    walled: tuple[EngineProvider, Sandbox], place: Place, tmp_path: Path
) -> None:
    """Not even one by which the operator of the engine has given a folder of the machine."""
    folder = tmp_path / "given"
    folder.mkdir(mode=0o777)
    bound = (f"--opt=device={folder}", "--opt=type=none", "--opt=o=bind")
    place.engine.docker("volume", "create", *bound, "remote-sandbox-given")
    try:
        made = await make(walled[0], volumes=(Volume("remote-sandbox-given", "/var"),))
        sandbox = await walled[0].open(made)
        wrote = await say(
            sandbox, "ls -A /var; echo x >/var/new; mount -o remount,rw /var; umount /var; echo x >/var/new"
        )
        await sandbox.close()
        await walled[0].delete(made)
    finally:
        place.engine.docker("volume", "rm", "--force", "remote-sandbox-given")
    assert wrote.count("Read-only file system") == 2, wrote
    assert os.listdir(folder) == []

"""What may be ordered, and who makes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remote_sandbox_mcp.backends import bubblewrap, opensandbox
from remote_sandbox_mcp.core.errors import UNCONFIRMED, BadArgument, ConfigError
from remote_sandbox_mcp.core.sandboxes.disposable import DisposableRules, Limits, SandboxOrder, Traits, Volume
from remote_sandbox_mcp.services.disposable.policy import checked, is_plain, provider_for

ALONE = {bubblewrap.KIND: bubblewrap.TRAITS}
BOTH = {**ALONE, opensandbox.KIND: opensandbox.TRAITS}
GOOD = SandboxOrder(
    name="web 2",
    image="python:3.12",
    env={"TOKEN": "x\n"},
    limits=Limits(cpu=0.5, memory_mb=64),
    volumes=(Volume("/data", "/data"),),
    hosts=("pypi.org",),
    metadata={"for": "tests"},
)


def test_a_good_order_passes_with_its_provider_filled_in() -> None:
    assert checked(GOOD, DisposableRules(), BOTH, ["gpu1"]) == replace(GOOD, provider="opensandbox")


def test_the_default_image_is_meant_where_none_is_named() -> None:
    rules = DisposableRules(default_image="debian")
    assert checked(SandboxOrder(), rules, BOTH, []).image == "debian"
    assert checked(SandboxOrder(image="x"), rules, BOTH, []).image == "x"


def test_an_image_of_containers_is_not_meant_for_the_embedded_sandbox() -> None:
    rules = DisposableRules(default_image="python:3.12")
    assert checked(SandboxOrder(provider="embedded"), rules, BOTH, []).image == ""
    assert checked(SandboxOrder(), rules, ALONE, []).image == ""
    folder = DisposableRules(default_image="/srv/debian")
    assert checked(SandboxOrder(), folder, ALONE, []).image == "/srv/debian"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        pytest.param({"name": "gpu1"}, "'gpu1' already", id="a machine's name"),
        pytest.param({"name": "a:b"}, 'without "/", ":"', id="colon"),
        pytest.param({"name": "a/b"}, 'without "/", ":"', id="slash"),
        pytest.param({"name": "a\nb"}, "control characters", id="control"),
        pytest.param({"name": "\udcff"}, "control characters", id="no text"),
        pytest.param({"name": " a"}, "1 to 60 characters", id="space"),
        pytest.param({"name": "a\0"}, "NUL", id="NUL in name"),
        pytest.param({"name": "x" * 61}, "1 to 60 characters", id="long"),
        pytest.param({"name": "sb-0123456789ab"}, "looks like the id", id="an id"),
        pytest.param({"image": "a\0b"}, "image holds a NUL", id="NUL in image"),
        pytest.param({"env": {"A": "b\0"}}, "env holds a NUL", id="NUL in env"),
        pytest.param({"env": {"A=B": ""}}, "no name of a variable", id="bad variable"),
        pytest.param({"env": {"": ""}}, "no name of a variable", id="empty variable"),
        pytest.param({"volumes": (Volume("a\0", "/b"),)}, "volumes holds a NUL", id="NUL in volume"),
        pytest.param({"volumes": (Volume("a", "b"),)}, "whole path", id="relative target"),
        pytest.param({"entrypoint": ("a\0",)}, "entrypoint holds a NUL", id="NUL in entrypoint"),
        pytest.param({"metadata": {"a": "\0"}}, "metadata holds a NUL", id="NUL in metadata"),
        pytest.param({"hosts": ("a\0",)}, "is no host", id="NUL in a host"),
        pytest.param({"hosts": ("pypi.org", "https://pypi.org")}, "'https://pypi.org' is no host", id="no host"),
        pytest.param({"hosts": ("a",) * 101}, "network names 101 hosts", id="many hosts"),
        pytest.param({"timeout_s": -1.0}, "timeout is -1", id="negative"),
        pytest.param({"timeout_s": 0.5}, "timeout is 0.5", id="short"),
        pytest.param({"timeout_s": 1e9}, "timeout is 1000000000", id="endless"),
        pytest.param({"timeout_s": float("nan")}, "timeout is nan", id="no number"),
        pytest.param({"limits": Limits(cpu=-1)}, "cpu is -1", id="cpu"),
        pytest.param({"limits": Limits(memory_mb=1 << 30)}, "memory_mb is", id="memory"),
        pytest.param({"limits": Limits(gpus=65)}, "gpus is 65", id="gpus"),
        pytest.param({"limits": Limits(gpu_memory_mb=1)}, "gpu_memory is for a number of GPUs", id="memory of no GPU"),
        pytest.param({"limits": Limits(gpus=1, gpu_memory_mb=1)}, "on a machine with docker", id="memory of a GPU"),
        pytest.param({"provider": "mars"}, "^on: there is no place 'mars'; there are: embedded", id="provider"),
        pytest.param({"limits": Limits(gpus=2, cards=("0", "2"))}, "gpu: cards can be chosen only on", id="cards"),
        pytest.param({"limits": Limits(gpus=1, cards=("65",))}, "gpus is 65", id="one number in quotes"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadArgument, match=sentence):
        checked(replace(GOOD, **changes), DisposableRules(), BOTH, ["gpu1"])


@pytest.mark.parametrize(
    ("wanted", "configured", "offered", "made_by"),
    [
        pytest.param("", "", BOTH, "opensandbox", id="a platform"),
        pytest.param("", "", ALONE, "embedded", id="none"),
        pytest.param("", "embedded", BOTH, "embedded", id="configured"),
        pytest.param("opensandbox", "embedded", BOTH, "opensandbox", id="ordered"),
    ],
)
def test_the_order_beats_the_rules_and_those_beat_the_usual(
    wanted: str, configured: str, offered: dict[str, Traits], made_by: str
) -> None:
    assert provider_for(wanted, DisposableRules(provider=configured), offered) == made_by


ENGINES = {**ALONE, "docker:gpu1": Traits(machine="gpu1", has_cards=True)}


def test_a_machine_with_an_engine_is_a_place_and_any_other_is_refused_by_what_to_do() -> None:
    assert provider_for("gpu1", DisposableRules(), ENGINES, ["gpu1", "gpu2"]) == "docker:gpu1"
    assert provider_for("", DisposableRules(), ENGINES) == "embedded"
    with pytest.raises(
        BadArgument, match=r"^on: no sandboxes are made on gpu2; the owner of an SSH machine .* are: embedded, gpu1$"
    ):
        provider_for("gpu2", DisposableRules(), ENGINES, ["gpu1", "gpu2"])


def test_cards_are_named_on_a_machine_and_counted_elsewhere() -> None:
    order = SandboxOrder(limits=Limits(gpus=1, cards=("2",)), provider="gpu1", image="x")
    assert checked(order, DisposableRules(), ENGINES, ()).limits == Limits(gpus=1, cards=("2",))
    assert checked(replace(order, provider="embedded", image=""), DisposableRules(), ENGINES, ()).limits == Limits(
        gpus=2
    )


def test_a_configured_provider_that_is_not_there_is_the_operators_to_mend() -> None:
    with pytest.raises(ConfigError, match=r"'opensandbox' is configured .* Configure the platform's address"):
        provider_for("", DisposableRules(provider="opensandbox"), ALONE)


@pytest.mark.parametrize(
    ("order", "plain"),
    [
        pytest.param(SandboxOrder(image="x", name="n", timeout_s=5), True, id="plain"),
        pytest.param(SandboxOrder(env={"A": ""}), False, id="env"),
        pytest.param(SandboxOrder(network=True), False, id="network"),
        pytest.param(SandboxOrder(network=False, provider="opensandbox"), False, id="no network of a platform"),
        pytest.param(SandboxOrder(network=False, provider="embedded"), True, id="no network of the embedded one"),
        pytest.param(SandboxOrder(network=True, provider="embedded"), False, id="network of the embedded one"),
        pytest.param(SandboxOrder(network=True, hosts=("pypi.org",)), False, id="hosts"),
        pytest.param(SandboxOrder(limits=Limits(cpu=1)), False, id="limits"),
        pytest.param(SandboxOrder(timeout_s=0), False, id="no end"),
    ],
)
def test_only_a_plain_order_is_served_by_one_that_was_made_before(order: SandboxOrder, plain: bool) -> None:
    assert is_plain(order, BOTH[order.provider or "embedded"]) is plain


NETWORKS = pytest.mark.parametrize(
    "changes",
    [{"hosts": ("attacker.example:443",), "network": True}, {"hosts": (), "network": True}],
    ids=["a host", "every host"],
)
CLUSTER = {"slurm:hpc": Traits(is_queue=True, machine="hpc")}
PLACES = {**BOTH, "engine:gpu1": Traits(keeps_network_off=True, machine="gpu1"), **CLUSTER}


@NETWORKS
@pytest.mark.parametrize("provider", ["embedded", "opensandbox", "gpu1"])
def test_a_network_beyond_the_operators_list_is_refused_for_every_provider(
    provider: str, changes: dict[str, object]
) -> None:
    with pytest.raises(BadArgument, match="network_hosts") as raised:
        checked(replace(GOOD, provider=provider, **changes), DisposableRules(), PLACES, ["gpu1", "hpc"])
    assert raised.value.reason == UNCONFIRMED


@NETWORKS
def test_a_person_chooses_any_network(changes: dict[str, object]) -> None:
    assert checked(replace(GOOD, free=True, **changes), DisposableRules(), PLACES, []).provider == "opensandbox"


def test_an_allocation_has_its_network_whatever_the_list() -> None:
    order = SandboxOrder(network=True, provider="hpc")
    assert checked(order, DisposableRules(network_hosts=()), PLACES, ["hpc"]).network is True

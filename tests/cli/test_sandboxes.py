from __future__ import annotations

import os
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

from remote_sandbox_mcp.cli.render import Page
from remote_sandbox_mcp.cli.sandboxes import show_cluster
from remote_sandbox_mcp.core.sandboxes.cluster import ClusterUsage, GpuCount, OldestPending, Partition
from tests.cli.conftest import COMMAND, Cli, Maker, entry, nobody
from tests.support.pace import at_most
from tests.support.sshd import Sshd, closed_port, silent_port

DATA = Path(__file__).parents[1] / "services/probe/data"
GPU = f"""\
mkdir -p ~/bin
cat >~/bin/gpus.csv <<'EOF'
{(DATA / "h200-busy.csv").read_text().rstrip()}
EOF
cat >~/bin/apps.csv <<'EOF'
{(DATA / "h200-apps.csv").read_text().rstrip()}
EOF
cat >~/bin/nvidia-smi <<'EOF'
#!/bin/sh
case $* in --query-gpu=*) cat ~/bin/gpus.csv ;; --query-compute-apps=*) cat ~/bin/apps.csv ;; esac
EOF
chmod +x ~/bin/nvidia-smi
PATH=~/bin:$PATH
"""


def test_each_is_listed_with_what_it_is_and_whether_it_answers(cli: Cli, good: Sshd) -> None:
    with closed_port() as port:
        cli.machines.append(nobody("gone", port))
        page = cli("sandboxes")
    assert page.code == 0
    rows = [" ".join(line.split()) for line in page.stdout.splitlines()]
    assert f"✓ {good.name} * ssh {good.user}@127.0.0.1:{good.port}" in rows
    assert f"✗ gone ssh nobody@127.0.0.1:{port}" in rows
    assert "nothing listens on that port; check port, or whether sshd runs" in rows
    assert "✓ local local this machine" in rows
    assert "\x1b" not in page.stdout


def test_one_that_is_silent_delays_only_until_its_deadline(cli: Cli, good: Sshd) -> None:
    with silent_port() as port:
        cli.machines += [nobody(name, port, connect_timeout_s=3) for name in ("one", "two", "three", "four")]
        outcome = cli("sandboxes", "--json")
    assert [sandbox["connection_alive"] for sandbox in outcome.json["sandboxes"]] == [True, *[False] * 4, True]
    # One after another they would take four times as long as one.
    assert outcome.seconds < at_most(4 * 3)


def test_resources_are_bars_with_who_uses_what(cli: Cli, made: Maker) -> None:
    cli.machines = [entry(made("gpus", bashrc=GPU))]
    page = cli("sandboxes", "--resources").stdout
    assert "gpus *  ssh " in page
    assert "  idle 0." in page
    assert "CPU" in page
    assert "█" in page
    assert "NVIDIA H200" in page
    assert "GPU 0" in page


def test_a_cluster_is_a_table_of_its_partitions(capsys: pytest.CaptureFixture[str]) -> None:
    gpus = (GpuCount("a100", 1, 2),)
    oldest = OldestPending("7", "gpu", "ReqNodeNotAvail, UnavailableNodes:n[b-c]")
    cluster = ClusterUsage((Partition("gpu", True, mixed=1, gpus=gpus),), pending={"gpu": 3}, oldest=oldest)
    show_cluster(Page(), cluster)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1][:6] == ["gpu", "(default)", "0", "1", "0", "0"]
    assert " ".join(rows[2]) == f"your jobs: 3 pending (3 in gpu); the oldest pending is 7 in gpu: {oldest.reason}"


async def test_json_is_what_the_tool_returns(cli: Cli, good: Sshd) -> None:
    with closed_port() as port:
        cli.machines.append(nobody("gone", port))
        told = cli("sandboxes", "--json")
        async with Client(StdioServerParameters(command=COMMAND, env=cli.env)) as client:
            result = await client.call_tool("list_sandboxes", {})
    assert told.code == 0
    assert told.json == result.structured_content


def test_json_with_resources_has_a_score(cli: Cli, good: Sshd) -> None:
    (first, *_) = cli("sandboxes", "--resources", "--json").json["sandboxes"]
    assert 0 <= first["resources"]["idle_score"] <= 1
    assert first["resources"]["memory"]["total_mb"] > 0


def test_without_any_it_says_where_to_begin(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[local]\nenabled = false\n")
    page = cli("--config", str(config), "sandboxes")
    assert page.code == 0
    assert "No sandbox is configured; remote-sandbox-mcp doctor says where to begin." in page.stdout
    assert os.environ["HOME"] not in page.stdout

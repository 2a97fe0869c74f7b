"""Options of sbatch: which ones a caller may give, what their values may be, and which defaults they replace."""

from __future__ import annotations

import pytest

from remote_sandbox_mcp.core.errors import BadArgument
from remote_sandbox_mcp.core.sandboxes.slurm import Cluster, read_options, words


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        pytest.param({"output": "/home/alice/.bashrc"}, "an option 'output'", id="a file of ours to choose"),
        pytest.param({"uid": 0}, "an option 'uid'", id="another user"),
        pytest.param({"wrap": "id"}, "an option 'wrap'", id="another program"),
        pytest.param({"partion": "gpu"}, "did you mean partition", id="a slip"),
        pytest.param({"partition": True}, "partition needs a value", id="no value"),
        pytest.param({"partition": "gpu\n#SBATCH --uid=0"}, "partition has a value", id="a second line"),
        pytest.param({"partition": "--uid=0"}, "partition has a value", id="a second option"),
        pytest.param({"nodes": [1, 2]}, "nodes has a value", id="a list"),
        pytest.param({"comment": "x" * 2000}, "comment has a value", id="too long"),
        pytest.param({"comment": "$(id)"}, "comment has a value", id="words for a shell"),
    ],
)
def test_what_sbatch_must_not_be_given_is_refused(given: dict[str, object], reason: str) -> None:
    with pytest.raises(BadArgument, match=reason):
        read_options(given)


@pytest.mark.parametrize(
    "value", ["1-12:30:00", "0-15:4%2", "afterok:123:124?afternotok:9", "a100:2", "[rack1*2&rack2*4]", "b:USR1@60"]
)
def test_values_as_the_manual_writes_them_are_taken(value: str) -> None:
    assert words(read_options({"time": value})) == [f"--time={value}"]


def test_a_call_replaces_the_operators_defaults_and_can_take_one_out() -> None:
    cluster = Cluster(read_options({"partition": "gpu", "qos": "long", "exclusive": True}))
    given = read_options({"partition": "cpu", "qos": "", "exclusive": False, "nice": -5})
    assert words(cluster.options(given)) == ["--nice=-5", "--partition=cpu"]

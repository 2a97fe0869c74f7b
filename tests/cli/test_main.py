from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.support.means import require_local

# A Python as on Windows, as far as it matters here: modules that are missing there cannot be imported.
ON_WINDOWS = """
import runpy, sys
sys.platform = "win32"
for name in ("fcntl", "pwd", "grp", "resource", "termios"):
    sys.modules[name] = None
sys.argv = ["remote-sandbox-mcp", *sys.argv[2:]]
if {module!r}:
    runpy.run_module({module!r}, run_name="__main__")
from remote_sandbox_mcp.cli.main import main
raise SystemExit(main())
"""


@pytest.mark.parametrize("module", ["", "remote_sandbox_mcp", "remote_sandbox_mcp.server"])
@pytest.mark.parametrize("words", [[], ["doctor"], ["exec", "ls"]], ids=" ".join)
def test_on_windows_one_sentence_says_what_to_do(module: str, words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_WINDOWS.format(module=module), "-", *words],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("remote-sandbox-mcp: it does not run on Windows itself; install it in WSL")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(
            ["doctr"], "there is no 'doctr'; did you mean doctor? There are: setup, doctor, import", id="verb"
        ),
        pytest.param(["hosts", "frget", "gpu1"], "there is no 'frget'; did you mean forget?", id="action"),
        pytest.param(["--mode", "htpp"], "there is no 'htpp'; did you mean http?", id="option"),
        pytest.param(["zzz"], "there is no 'zzz'; There are: setup, doctor", id="nothing like it"),
    ],
)
def test_a_word_that_is_wrong_comes_with_the_one_that_was_meant(cli: Cli, words: list[str], told: str) -> None:
    outcome = cli(*words)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert told in outcome.stderr


def test_options_hold_before_and_after_the_verb(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[machines.tower]\nhost = 'tower.example.org'\n")
    given = ("--config", str(config))
    shown = [
        cli(*words, REMOTE_SANDBOX_LIST="").json
        for words in (
            (*given, "--json", "config", "show"),
            ("config", *given, "--json", "show"),
            ("config", "show", *given, "--json"),
            (*given, "config", "--json"),
            ("--json", "config", *given),
        )
    ]
    assert [machine["name"] for machine in shown[0]["machines"]] == ["tower"]
    assert all(other == shown[0] for other in shown)


def test_words_of_a_command_are_not_options_of_ours(cli: Cli) -> None:
    require_local()
    outcome = cli("exec", "--sandbox", "local", "--json", "echo", "--json", "--config", "x")
    assert outcome.json["stdout"] == "--json --config x\n"


def test_json_takes_a_verb(cli: Cli) -> None:
    assert cli("--json").json["error"] == "--json goes with a verb"

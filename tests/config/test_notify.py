from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.show import show
from remote_sandbox_mcp.core.jobs.alerts import Alerts
from remote_sandbox_mcp.core.permission import Hook, Notify
from tests.support.config_reading import HIDDEN, A, read, the_problem

FULL = f"""
[notify]
desktop = false
webhooks = ["https://hooks.slack.com/services/{HIDDEN}/", "http://127.0.0.1:9000"]
webhook_format = "slack"
webhook_secret = "env:KEY"
[hooks.codex]
command = ["codex", "exec", "", " as it is ", "$HOME"]
timeout_s = 600
[hooks.mail-me]
command = ["~/bin/mail"]
"""


def test_everything_may_be_said(tmp_path: Path, clean_environment: Path) -> None:
    program = clean_environment / "bin" / "mail"
    program.parent.mkdir()
    program.touch(mode=0o700)
    configuration = read(tmp_path, FULL, KEY=HIDDEN)
    assert configuration.problems == ()
    notify = configuration.settings.notify
    assert (notify.desktop, notify.webhook_format) == (False, "slack")
    assert notify.webhooks == (f"https://hooks.slack.com/services/{HIDDEN}/", "http://127.0.0.1:9000")
    assert notify.webhook_secret
    assert notify.webhook_secret.reveal() == HIDDEN
    assert notify.hooks == {
        "codex": Hook(("codex", "exec", "", " as it is ", "$HOME"), 600.0),
        "mail-me": Hook((str(program),)),
    }
    assert HIDDEN not in f"{configuration!r}{json.dumps(show(configuration))}"


def test_nothing_is_allowed_unless_it_is_said(tmp_path: Path) -> None:
    assert read(tmp_path, A).settings.notify == Notify()
    assert Notify() == Notify(desktop=True, webhooks=(), webhook_format="auto", webhook_secret=None, hooks={})


def test_what_is_in_force_is_shown_with_its_source(tmp_path: Path) -> None:
    configuration = read(tmp_path, '[notify]\ndesktop = false\n[hooks.a]\ncommand = ["a", "b"]\n')
    shown = show(configuration)["settings"]
    file = str(tmp_path / "config.toml")
    assert shown["notify.desktop"] == {"value": False, "source": file}
    assert shown["notify.webhooks"] == {"value": [], "source": "default"}
    assert shown["notify.webhook_secret"] == {"value": None, "source": "default"}
    assert shown["hooks.a"] == {"value": "a (60 s)", "source": file}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("notify = 1", "must be a table, written as [notify]", id="notify is a number"),
        pytest.param("hooks = 1", "must be a table, written as [hooks.NAME]", id="hooks is a number"),
        pytest.param("[notify]\ndesktop = 'maybe'", "desktop must be true or false", id="desktop"),
        pytest.param("[notify]\nwebhook = 'x'", 'the nearest right key is "webhooks"', id="unknown key"),
        pytest.param("[notify]\nwebhooks = [1]", "webhooks must be text in quotes", id="webhook is a number"),
        pytest.param(
            f"[notify]\nwebhooks = ['http://{HIDDEN}.com/{HIDDEN}']", "number 1 of webhooks", id="without encryption"
        ),
        pytest.param(f"[notify]\nwebhooks = ['https://u:{HIDDEN}@h/']", "no user, password", id="password in it"),
        pytest.param("[notify]\nwebhooks = ['https://h/a/../b']", '"." or ".."', id="dots in it"),
        pytest.param("[notify]\nwebhook_format = 'xml'", "one of auto, json, slack, feishu, dingtalk", id="format"),
        pytest.param("[notify]\nwebhook_secret = 1", "webhook_secret must be text", id="secret is a number"),
        pytest.param("[notify]\nwebhook_secret = 'env:NOT_SET'", "not set", id="secret that is not there"),
        pytest.param("[hooks]\na = 1", "[hooks.a] is left out: it must be a table", id="hook is a number"),
        pytest.param("[hooks.a]\ntimeout_s = 3", "[hooks.a] is left out: command is missing", id="no command"),
        pytest.param(f"[hooks.a]\ncommand = 'x {HIDDEN}'", "must be a list of words", id="command is a line"),
        pytest.param("[hooks.a]\ncommand = []", "must be a list of words", id="empty command"),
        pytest.param("[hooks.a]\ncommand = ['']", "must be a list of words", id="empty program"),
        pytest.param("[hooks.a]\ncommand = ['a', 1]", "must be text in quotes", id="word is a number"),
        pytest.param("[hooks.a]\ncommand = ['bin/a']", "by its whole path", id="relative program"),
        pytest.param('[hooks.a]\ncommand = ["a", "\\u0000"]', "cannot be sent", id="NUL"),
        pytest.param("[hooks.a]\ncommand = ['a']\ntimeout_s = 0", "timeout_s must be a number", id="time limit"),
        pytest.param("[hooks.'a b']\ncommand = ['a']", "its name must be letters", id="name"),
        pytest.param("[hooks.a]\ncommand = ['/nowhere/a']", "is not there or may not be run", id="no such program"),
    ],
)
def test_a_mistake_is_told_and_the_rest_holds(tmp_path: Path, text: str, told: str) -> None:
    good = "[machines.a]\nhost = '192.0.2.1'\nuser = 'u'\n[local]\nname = 'here'\n"
    configuration = read(tmp_path, f"{text}\n{good}")
    assert told in the_problem(configuration)
    assert [machine.name for machine in configuration.machines] == ["a"]
    assert configuration.local
    assert configuration.local.name == "here"


def test_good_entries_beside_bad_ones_work(tmp_path: Path) -> None:
    configuration = read(
        tmp_path,
        "[notify]\nwebhooks = ['https://a/', 'http://b/', 'https://c/']\n"
        "[hooks.good]\ncommand = ['a']\n[hooks.bad]\ncommand = 1\n",
    )
    assert configuration.settings.notify.webhooks == ("https://a/", "https://c/")
    assert list(configuration.settings.notify.hooks) == ["good"]
    assert len(configuration.problems) == 2


def test_a_secret_in_a_file_that_others_may_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[notify]\nwebhook_secret = "{HIDDEN}"\n')
    path.chmod(0o644)
    (problem,) = load(path, {}).problems
    assert f"chmod 600 {path}" in problem


@settings(max_examples=40, deadline=None)
@given(text=st.text("[]{}=\"\\notify.hooks desktop command = webhooks https://#\n1'", max_size=80))
def test_whatever_stands_there_loading_does_not_fail(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any-notify.toml"
    path.write_text(f"[notify]\n{text}")
    configuration = load(path, {})
    json.dumps(show(configuration))


def test_an_agent_needs_no_command_and_may_have_one(tmp_path: Path) -> None:
    text = '[hooks.codex]\nkind = "codex"\n[hooks.c]\nkind = "claude"\ncommand = ["/bin/true", "-p"]\ntimeout_s = 5\n'
    configuration = read(tmp_path, text)
    assert configuration.problems == ()
    assert configuration.settings.notify.hooks == {
        "codex": Hook(("codex", "exec", "resume", "--last", "-"), 1800.0, "codex"),
        "c": Hook(("/bin/true", "-p"), 5.0, "claude"),
    }
    assert read(tmp_path, '[hooks.x]\nkind = "gemini"\n').settings.notify.hooks == {}


def test_alerts_are_spans(tmp_path: Path) -> None:
    configuration = read(tmp_path, '[watch]\ngpu_idle = "0"\nsilent = "2h"\n[notify]\nclaude_channel = "auto"\n')
    assert configuration.problems == ()
    assert configuration.settings.alerts == Alerts(gpu_idle_s=0.0, silent_s=7200.0)
    wrong = read(tmp_path, '[watch]\nsilent = "soon"\n')
    assert "must be a span of time" in wrong.problems[0]
    assert wrong.settings.alerts == Alerts(gpu_idle_s=1800.0)

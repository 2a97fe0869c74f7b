from __future__ import annotations

import json
from pathlib import Path

from remote_sandbox_mcp.config.load import load
from remote_sandbox_mcp.config.machines import completed
from remote_sandbox_mcp.config.show import show
from remote_sandbox_mcp.core.sandboxes.network import PACKAGE_INDEXES

HIDDEN = "hunter2-do-not-show"

CONFIG = f"""
default = "gpu1"
[server]
patience_s = 30
[machines.gpu1]
host = "192.0.2.1"
user = "ubuntu"
password = "env:PW"
key_passphrase = "{HIDDEN}"
sudo = "{HIDDEN}"
init = "export TOKEN={HIDDEN}"
env = {{ TOKEN = "{HIDDEN}" }}
jump = "bastion"
[machines.bastion]
host = "b"
user = "jump"
password = "command:op read {HIDDEN}"
[sandboxes.web]
command = ["/usr/bin/door", "{HIDDEN}"]
env = {{ TOKEN = "{HIDDEN}" }}
[local]
env = {{ TOKEN = "{HIDDEN}" }}
[notify]
webhooks = ["https://hooks.slack.com/services/{HIDDEN}"]
webhook_secret = "{HIDDEN}"
[hooks.codex]
command = ["codex", "--token", "{HIDDEN}"]
[opensandbox]
server_url = "box:8080"
api_key = "{HIDDEN}"
[http]
api_key = "env:PW"
"""


def test_everything_is_shown_but_secrets(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    path.chmod(0o600)
    configuration = load(path, {"PW": HIDDEN, "REMOTE_SANDBOX_INLINE_SYNC_MAX_FILES": "7", "MCP_LOG_LEVEL": "debug"})
    shown = show(configuration)
    assert HIDDEN not in json.dumps(shown)
    assert shown == {
        "file": str(path),
        "default": "gpu1",
        "machines": [
            {
                "name": "gpu1",
                "host": "192.0.2.1",
                "port": 22,
                "user": "ubuntu",
                "password": "hidden (from env:PW)",
                "key_passphrase": "hidden",
                "jump": [{"host": "b", "port": 22, "user": "jump", "password": "hidden (from command:op)"}],
                "strict_host_keys": False,
                "connect_timeout_s": 5.0,
                "python": "python3",
                "init": "hidden (1 line)",
                "env": {"TOKEN": "hidden"},
                "sudo": "hidden",
                "source": f"{path} [machines.gpu1]",
            },
            {
                "name": "bastion",
                "host": "b",
                "port": 22,
                "user": "jump",
                "password": "hidden (from command:op)",
                "strict_host_keys": False,
                "connect_timeout_s": 5.0,
                "python": "python3",
                "source": f"{path} [machines.bastion]",
            },
        ],
        "sandboxes": [
            {
                "name": "web",
                "command": "/usr/bin/door ...",
                "python": "python3",
                "connect_timeout_s": 20.0,
                "env": {"TOKEN": "hidden"},
                "source": f"{path} [sandboxes.web]",
            }
        ],
        "local": {"name": "local", "network": False, "env": {"TOKEN": "hidden"}},
        "settings": {
            "patience_s": {"value": 30.0, "source": str(path)},
            "result_chars": {"value": None, "source": "default"},
            "strict_host_keys": {"value": False, "source": "default"},
            "keep_calls_days": {"value": 30, "source": "default"},
            "redact_output": {"value": False, "source": "default"},
            "connect_timeout_s": {"value": 5.0, "source": "default"},
            "expose_advanced_tools": {"value": False, "source": "default"},
            "inline_sync_max_files": {"value": 7, "source": "REMOTE_SANDBOX_INLINE_SYNC_MAX_FILES"},
            "inline_sync_max_bytes": {"value": 67108864, "source": "default"},
            "allow_hidden": {"value": (), "source": "default"},
            "allowed_roots": {"value": (), "source": "default"},
            "allowed_roots_read": {"value": (), "source": "default"},
            "forward_ports": {"value": (), "source": "default"},
            "pass_env": {"value": (), "source": "default"},
            "results.text": {"value": None, "source": "default"},
            "notify.desktop": {"value": True, "source": "default"},
            "notify.webhooks": {"value": ["https://hooks.slack.com/..."], "source": str(path)},
            "notify.webhook_format": {"value": "auto", "source": "default"},
            "notify.webhook_secret": {"value": "hidden", "source": str(path)},
            "notify.claude_channel": {"value": "auto", "source": "default"},
            "notify.mcp_events": {"value": False, "source": "default"},
            "watch.gpu_idle": {"value": "30 min", "source": "default"},
            "watch.silent": {"value": "0 s", "source": "default"},
            "hooks.codex": {"value": "codex (60 s)", "source": str(path)},
            "opensandbox.server_url": {"value": "http://box:8080", "source": str(path)},
            "opensandbox.api_key": {"value": "hidden", "source": str(path)},
            "opensandbox.use_server_proxy": {"value": False, "source": "default"},
            "opensandbox.default_image": {"value": None, "source": "default"},
            "opensandbox.default_timeout": {"value": 600.0, "source": "default"},
            "opensandbox.max_concurrent_sandboxes": {"value": 5, "source": "default"},
            "opensandbox.auto_cleanup": {"value": True, "source": "default"},
            "opensandbox.cleanup_after_minutes": {"value": 30.0, "source": "default"},
            "opensandbox.pool": {"value": {}, "source": "default"},
            "opensandbox.volumes": {"value": [], "source": "default"},
            "disposable.provider": {"value": "opensandbox", "source": "default"},
            "disposable.network": {"value": "own", "source": "default"},
            "disposable.network_hosts": {"value": list(PACKAGE_INDEXES), "source": "default"},
            "disposable.private_ranges": {"value": [], "source": "default"},
            "http.api_key": {"value": "hidden (from env:PW)", "source": str(path)},
            "http.host": {"value": "127.0.0.1", "source": "default"},
            "http.port": {"value": 3000, "source": "default"},
            "http.allowed_hosts": {"value": [], "source": "default"},
            "http.allowed_origins": {"value": [], "source": "default"},
            "logging.level": {"value": "DEBUG", "source": "MCP_LOG_LEVEL"},
            "logging.file": {"value": None, "source": "default"},
            "logging.max_size_mb": {"value": 10.0, "source": "default"},
            "extensions": {"value": [], "source": "default"},
        },
        "problems": [],
    }


def test_a_proxy_command_is_hidden(clean_environment: Path, tmp_path: Path) -> None:
    (clean_environment / ".ssh").mkdir()
    (clean_environment / ".ssh" / "config").write_text(f"Host h\n ProxyCommand nc -P {HIDDEN} %h %p\n")
    (tmp_path / "config.toml").write_text('hosts = ["h"]\n')
    shown = show(completed(load(tmp_path / "config.toml", {})))
    assert shown["machines"][0]["proxy_command"] == "hidden"
    assert HIDDEN not in json.dumps(shown)


def test_nothing_configured_is_shown_as_such() -> None:
    shown = show(load(environ={}))
    assert (shown["file"], shown["machines"], shown["default"]) == ("none", [], "local")

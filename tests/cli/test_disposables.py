from __future__ import annotations

import json
import signal
import socket

from tests.cli.conftest import DEADLINE_S, Cli
from tests.support.means import require_local
from tests.support.sshd import Sshd, closed_port


def test_a_sandbox_is_made_used_and_deleted(cli: Cli) -> None:
    require_local()
    made = cli("create", "--name", "box", "--env", "COLOUR=green", "--env", "SHADE", "--timeout", "300", SHADE="dark")
    name = made.stdout.strip()
    assert (made.code, name[:3]) == (0, "sb-")
    ran = cli("exec", "--sandbox", "box", "--", "echo $COLOUR $SHADE")
    assert (ran.code, ran.stdout) == (0, "green dark\n")
    deleted = cli("delete", "box", "no-such-box", "--json")
    assert deleted.code == 2
    assert deleted.json["deleted"] == [{"sandbox_id": name, "status": "deleted"}]
    assert deleted.json["problems"][0]["sandbox_id"] == "no-such-box"
    assert cli("exec", "--sandbox", name, "--", "true").code == 2


def test_mistakes_in_an_order_are_one_sentence_and_make_nothing(cli: Cli) -> None:
    for words, told in (
        (("--memory", "much"), "memory is 'much'; write it as 512m or 2g"),
        (("--env", "NOT_SET_HERE"), "--env NOT_SET_HERE: that variable is not set here; write NAME=VALUE, or set it"),
        (("--volume", "x"), "a volume is written as source:/target or source:/target:rw, not 'x'"),
    ):
        refused = cli("create", *words)
        assert (refused.code, refused.stdout, refused.stderr) == (2, "", f"remote-sandbox-mcp: {told}\n")


def test_a_port_is_forwarded_until_ctrl_c_at_any_port_that_the_person_chooses(cli: Cli, good: Sshd) -> None:
    with closed_port() as port:
        pass
    forwarding = cli.start("forward", good.name, str(good.port), "--local-port", str(port))
    assert forwarding.stdout.readline() == f"http://127.0.0.1:{port}/\n".encode()
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
        assert connection.recv(8) == b"SSH-2.0-"
    forwarding.send_signal(signal.SIGINT)
    forwarding.communicate(DEADLINE_S)
    assert forwarding.returncode == 130
    unknown = cli("forward", "nowhere", "80", "--json")
    assert (unknown.code, json.loads(unknown.stdout)["code"]) == (2, "unknown_sandbox")

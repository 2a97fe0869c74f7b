"""The recording of docs/workspaces.md: a project is linked, edited here, run there, and its plot comes back."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.sshd import HOST, Fleet

from .terminal import Terminal, as_svg, terminal

TARGET = Path(__file__).parent.parent / "docs/workspaces.svg"
TRAIN = """\
import pathlib

EPOCHS = 1
for epoch in range(1, EPOCHS + 1):
    print(f"epoch {epoch}: loss {1 / epoch:.2f}", flush=True)
results = pathlib.Path("results")
results.mkdir(exist_ok=True)
(results / "loss.txt").write_text(f"{1 / EPOCHS:.2f} after {EPOCHS} epochs\\n")
"""


def main() -> int:
    with TemporaryDirectory(prefix="pictures-") as folder, Fleet() as fleet:
        machine = fleet.machine("gpu1")
        home, project = Path(folder), Path(folder) / "vision"
        (project / "src").mkdir(parents=True)
        (project / "train.py").write_text(TRAIN, encoding="utf-8")
        (project / "src/model.py").write_text("LAYERS = 4\n", encoding="utf-8")
        (project / ".env").write_text("TOKEN=x\n", encoding="utf-8")
        login = {"user": machine.user, "key_file": machine.key_file}
        entry = {"name": machine.name, "host": HOST, "port": machine.port, **login}
        environment = {
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_STATE_HOME": str(home / ".state"),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "REMOTE_SANDBOX_LIST": json.dumps([entry]),
            "REMOTE_SANDBOX_HUB_IDLE_S": "2",
        }
        with terminal(project, environment) as shown:
            play(shown)
        svg = as_svg(shown.frames, "A project is linked to a machine, edited here and run there")
        told = svg.replace(str(home), "~").replace(str(machine.home), "/home/ann")
        TARGET.write_text(re.sub(r"(~/vision) +(= )", r"\1  \2", told), encoding="utf-8")
    return 0


def play(shown: Terminal) -> None:
    shown.type("remote-sandbox-mcp link gpu1:vision", until="Link", rest_s=1.5)
    shown.type("y", rest_s=2)
    shown.type("remote-sandbox-mcp exec -- python3 train.py", rest_s=2)
    shown.type("sed -i 's/EPOCHS = 1/EPOCHS = 3/' train.py")
    shown.type("remote-sandbox-mcp exec -- python3 train.py", rest_s=2)
    shown.type("cat results/loss.txt", rest_s=1.5)
    shown.type("remote-sandbox-mcp workspaces", rest_s=3)


if __name__ == "__main__":
    sys.exit(main())

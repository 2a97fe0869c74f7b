"""A command in a container on a machine: what the way there adds to `docker exec` on the machine itself."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.engine_place import WITH_PYTHON, running_place

from ..client import succeeded
from ..contenders import compared
from ..measure import in_turns, timed
from ..mux import mux, spawn_and_wait
from ..report import Row
from ..stage import Stage, entry


def rows(stage: Stage) -> Iterator[Row]:
    folder = stage.folder / "container"
    folder.mkdir()
    with running_place(stage.fleet, folder) as place:
        machine = entry(place.sshd) | {"docker": list(place.words)}
        with stage.ours([machine]) as ours, mux(place.sshd, stage.folder) as ssh:
            made = ours.call("create_sandbox", image=WITH_PYTHON, on=place.sshd.name)["sandbox_id"]
            key = place.engine.docker("ps", "--quiet").stdout.split()[0]
            inside = [*place.words, "exec", key, "true"]
            try:
                racing = {
                    "ours, over ssh": timed(
                        lambda: succeeded(ours.call("exec_bash", command="true", sandbox_name=made))
                    ),
                    "docker exec there": timed(lambda: spawn_and_wait(inside)),
                    "docker exec by ssh, ControlMaster": timed(lambda: ssh.run(" ".join(inside))),
                }
                in_turns(racing, rounds=1, batch=2)
                times = in_turns(racing, rounds=stage.rounds(10, 3), batch=4)
            finally:
                ours.call("delete_sandbox", sandbox_id=made)
    for row in compared("container", "exec `true` in a container", times, at=0, axis=""):
        del row.detail["at"]
        yield row

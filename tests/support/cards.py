"""GPUs that a stand-in for nvidia-smi tells of, with UUIDs that no other test has, and their leases."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from remote_sandbox_mcp.far.jobs import cards as far
from tests.support.root import run_as_root

# As a driver of release 580 answers, to the probe and to a keeper.
SMI = """#!/bin/sh
case $* in
--query-gpu=index,uuid,name*) cat {0}/probe ;;
--query-gpu=index,uuid,utilization*) sed "s/^\\([^,]*, [^,]*\\),.*/\\1, $(cat {0}/busy)/" {0}/gpus ;;
--query-compute-apps=pid*) sed 's/\\(.*\\), \\(.*\\)/\\2, \\1, 1002/' {0}/apps ;;
--query-gpu=*) cat {0}/gpus ;;
--query-compute-apps=gpu_uuid,pid,used_memory*) sed 's/$/, 1002, python3/' {0}/apps ;;
--query-compute-apps=*) cat {0}/apps ;;
-L) cat {0}/list ;;
esac
"""
FOR_THE_PROBE = "{0}, {1}, NVIDIA H200, 580.159.04, 0, 0, {2}, {3}, {2}, 36, 125.44, 700.00, {4}, {5}"


class StandInCards:
    """A machine's cards: idle H200s until a test says otherwise. `bin` goes first on the PATH of its users."""

    def __init__(self, folder: Path, count: int) -> None:
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        self.bin = folder / "bin"
        self.bin.mkdir()
        self._folder = folder
        self.uuids = [f"GPU-{uuid.uuid4()}" for _ in range(count)]
        smi = self.bin / "nvidia-smi"
        smi.write_text(SMI.format(folder))
        smi.chmod(0o755)
        self.compute(0)
        self.tell([self.row(number) for number in range(count)])

    def row(self, number: int, used: object = 0, mode: str = "Default", mig: str = "Disabled") -> str:
        return f"{number}, {self.uuids[number]}, 143771, {used}, {mode}, {mig}"

    def tell(self, rows: Sequence[str], apps: Sequence[str] = (), list_: str = "") -> None:
        """From now on, this is what nvidia-smi prints."""
        tables = {"gpus": "".join(f"{row}\n" for row in rows), "apps": "".join(f"{row}\n" for row in apps)}
        probe = "".join(FOR_THE_PROBE.format(*row.split(", ")) + "\n" for row in rows if row.count(", ") == 5)
        for name, text in {**tables, "list": list_, "probe": probe}.items():
            new = self._folder / f"{name}.new"
            new.write_text(text)
            new.rename(self._folder / name)

    def compute(self, percent: int) -> None:
        """From now on, all cards are busy by so much."""
        (self._folder / "busy").write_text(str(percent))

    @property
    def files(self) -> list[Path]:
        """The files by which the cards are leased, whether they are there or not."""
        return [lease_path(uuid) for uuid in self.uuids]


def lease_path(name: str) -> Path:
    return Path(far.lease_file(far.lease_folder(), name).decode())


@contextmanager
def stand_in_cards(folder: Path, count: int) -> Iterator[StandInCards]:
    cards = StandInCards(folder, count)
    try:
        yield cards
    finally:
        run_as_root("rm", "-rf", *map(str, cards.files))

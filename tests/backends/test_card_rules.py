"""Which cards are free, by what the vendors' tools tell; and files of leases that are not what they should be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_sandbox_mcp.far.jobs import cards as far
from tests.support.cards import StandInCards, lease_path, stand_in_cards

MI300X = """WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

{"card0": {"GUID": "%(a)s", "Unique ID": "0x5b6c9c1d2e3f4a5b", "VRAM Total Memory (B)": "206141652992",
 "VRAM Total Used Memory (B)": "297766912"},
 "card1": {"GUID": "%(b)s", "Unique ID": "N/A", "VRAM Total Memory (B)": "206141652992",
 "VRAM Total Used Memory (B)": "180388626432"},
 "system": {"Driver version": "6.7.0"}}
"""


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInCards]:
    with stand_in_cards(tmp_path / "cards", 3) as cards:
        monkeypatch.setenv("PATH", f"{cards.bin}:{os.environ['PATH']}")
        yield cards


def taken(count: int = 1, memory_mb: int = 0) -> far.Leases:
    leases = far.Leases()
    leases.take(count, memory_mb, far.lease_record("train", 0))
    return leases


def test_a_removed_file_is_leased_again(cards: StandInCards) -> None:
    """As by a program that cleans the folder: whoever comes later must not find a new file that nobody holds."""
    leases = taken(3)
    cards.files[1].unlink()
    leases.keep()
    assert cards.files[1].read_text().startswith("user ")
    with pytest.raises(far.NoCards):
        taken()
    leases.drop()
    taken(3).drop()


def test_a_file_replaced_by_its_owner_while_it_was_opened_does_not_count(
    cards: StandInCards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise two would hold the card: one the old file, and one the new file of that name."""
    path, opened = cards.files[0], []

    def open_slowly(name: bytes) -> int:
        opened.append(open_lease(name))
        if len(opened) == 1:
            path.unlink()
        return opened[-1]

    open_lease = far.open_lease
    monkeypatch.setattr(far, "open_lease", open_slowly)
    fd = far.lock_lease(os.fsencode(path))
    assert len(opened) == 2
    assert os.path.samestat(os.fstat(fd), path.stat())
    os.close(fd)


def test_amd_cards_are_leased_by_their_own_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"a": f"{os.getpid()}1", "b": f"{os.getpid()}2"}
    tool = tmp_path / "rocm-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{MI300X % names}END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    leases = taken()
    try:
        assert [card.uuid for card in leases.cards] == [names["a"]]
        assert leases.variables == {b"ROCR_VISIBLE_DEVICES": b"GPU-5b6c9c1d2e3f4a5b"}
        with pytest.raises(far.NoCards) as refused:
            taken()
        first, *busy = str(refused.value).splitlines()
        assert first == "1 GPU cannot be had now: 0 of 2 are free"
        assert busy[0].startswith("GPU 0 is leased by ")
        assert busy[1] == "GPU 1 has 172032 MB in use by processes that are not shown"
    finally:
        leases.drop()
        lease_path(names["a"]).unlink()


def test_processes_on_amd_cards_are_the_kernels_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid, name, held in ((os.getpid(), "vram_28851", "4096"), (os.getpid(), "vram_51499", "0"), (1, "sdma_1", "7")):
        folder = tmp_path / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"{held}\n")
    monkeypatch.setattr(far, "KFD", str(tmp_path))
    assert far.amd_processes() == {"28851": [far.owner_of(os.getpid())]}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"card0": 3}', '{"card0": {}}', "no GPU", '{"a": ' * 5000])
def test_any_answer_of_rocm_smi_is_data(text: str) -> None:
    assert set(far.read_amd(text)) <= {"card0"}


@pytest.mark.parametrize(
    "line", ["", "0", "0, , 1, 2, Default, Disabled", "x, GPU-1, 1, 2, Default, Disabled", "0, ../../x y, 1, 1, a, b"]
)
def test_a_row_that_is_none_is_no_card(cards: StandInCards, line: str) -> None:
    cards.tell([line])
    with pytest.raises(far.NoCards, match="tells of a GPU"):
        taken()


def test_an_old_driver_that_knows_no_mig_is_asked_again(cards: StandInCards) -> None:
    (cards.bin / "nvidia-smi").write_text(
        "#!/bin/sh\ncase $* in\n"
        "*mig.mode*) echo 'Field \"mig.mode.current\" is not a valid field to query.'; exit 2 ;;\n"
        f"--query-gpu*) echo '0, {cards.uuids[0]}, 16160, 0, Default' ;;\nesac\n"
    )
    leases = taken(1, 16000)
    assert leases.variables == {b"CUDA_VISIBLE_DEVICES": cards.uuids[0].encode()}
    leases.drop()


def test_only_a_folder_of_root_that_is_open_to_all_and_sticky_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns the folder could remove the files of others."""
    good, link, closed, other, loose = (tmp_path / name for name in ("good", "link", "closed", "other", "loose"))
    for folder, mode in ((good, 0o1777), (closed, 0o1755), (other, 0o1777), (loose, 0o777)):
        folder.mkdir()
        folder.chmod(mode)
    link.symlink_to(good)
    if os.geteuid() == 0:
        os.chown(other, 12345, 12345)
    monkeypatch.setattr(
        far, "SHARED", tuple(os.fsencode(path) for path in (link, closed, other, loose, tmp_path / "no"))
    )
    with pytest.raises(far.NoCards, match="no folder that all users share"):
        far.lease_folder()
    if os.geteuid() == 0:
        monkeypatch.setattr(far, "SHARED", (*far.SHARED, os.fsencode(good)))
        assert far.lease_folder() == os.fsencode(good)


def test_many_busy_cards_are_told_in_a_bounded_answer() -> None:
    text = str(far.NoCards("none", [f"GPU {number} {'x' * 500}" for number in range(500)]))
    assert len(text) < 4000
    assert text.endswith("476 more are not free")

"""What `holdfast run` shows of the processes' logs: Follower."""

from __future__ import annotations

import shutil
from pathlib import Path

from holdfast._follow import Follower
from holdfast._streams import ERR, OUT

PROMOTED = "msrun: a spare has taken this place; its output goes on in"


def append(path: Path, text: str) -> None:
    with path.open("a") as log:
        log.write(text)


def test_core_a_spare_whose_log_is_found_after_its_promotion_is_shown(tmp_path: Path) -> None:
    shown: list[tuple[int, bytes]] = []
    follower = Follower(tmp_path, lambda rank, line, _: shown.append((rank, line)))
    spare = tmp_path / "spare_0.log"
    append(tmp_path / "worker_1.log", f"first\n{PROMOTED} {spare}\n")
    follower.show()
    append(spare, "second\nthird")
    follower.show()
    follower.close()
    assert shown == [(1, b"first\n"), (1, b"second\n"), (1, b"third\n")]


def test_core_a_spare_of_another_host_than_the_first_is_shown(tmp_path: Path) -> None:
    shown: list[tuple[int, bytes]] = []
    follower = Follower(tmp_path, lambda rank, line, _: shown.append((rank, line)))
    append(tmp_path / "worker_5.log", f"{PROMOTED} {tmp_path / 'spare_1_0.log'}\n")
    append(tmp_path / "spare_1_0.log", "second\n")
    follower.show()
    follower.close()
    assert shown == [(5, b"second\n")]


def test_core_of_a_job_that_is_continued_only_what_is_new_is_shown(tmp_path: Path) -> None:
    shown: list[tuple[int, bytes]] = []
    worker, spare = tmp_path / "worker_1.log", tmp_path / "spare_0.log"
    append(worker, f"old\n{PROMOTED} {spare}\n")
    append(spare, "old\n")
    follower = Follower(tmp_path, lambda rank, line, _: shown.append((rank, line)), goes_on=True)
    append(worker, "new\n")
    append(spare, "of a spare\n")
    follower.show()
    assert shown == [(1, b"new\n")]
    append(worker, f"{PROMOTED} {spare}\n")
    follower.close()
    assert shown == [(1, b"new\n"), (1, b"of a spare\n")]


def test_core_a_spare_without_a_place_is_not_shown(tmp_path: Path) -> None:
    shown: list[tuple[int, bytes]] = []
    follower = Follower(tmp_path, lambda rank, line, _: shown.append((rank, line)))
    spare = tmp_path / "spare_0.log"
    append(spare, "loaded\n")
    follower.show()
    assert shown == []
    append(tmp_path / "worker_1.log", f"{PROMOTED} {spare}\n")
    follower.close()
    assert shown == [(1, b"loaded\n")]


def test_core_a_folder_that_goes_away_and_comes_back_is_followed_on(tmp_path: Path) -> None:
    shown: list[tuple[int, bytes]] = []
    folder = tmp_path / "log"
    follower = Follower(folder, lambda rank, line, _: shown.append((rank, line)))
    append(folder / "worker_0.log", "first\nhalf")
    follower.show()
    assert follower.is_told
    shutil.rmtree(folder)
    follower.show()
    assert not follower.is_told
    folder.mkdir()
    append(folder / "worker_0.log", "anew\n")
    follower.show()
    assert follower.is_told
    follower.close()
    assert shown == [(0, b"first\n"), (0, b"half\n"), (0, b"anew\n")]


def test_core_a_log_that_was_there_before_is_neither_shown_nor_removed(tmp_path: Path) -> None:
    shown: list[tuple[int, bytes]] = []
    for name in ("worker_0.log", "spare_0.log"):
        append(tmp_path / name, "of another job\n")
    follower = Follower(tmp_path, lambda rank, line, _: shown.append((rank, line)))
    append(tmp_path / "worker_0.log", "of another job, too\n")
    follower.show()
    (tmp_path / "worker_0.log").unlink()
    append(tmp_path / "worker_0.log", f"ours\n{PROMOTED} {tmp_path / 'spare_0.log'}\n")
    follower.show()
    assert (tmp_path / "spare_0.log").read_text() == "of another job\n"
    (tmp_path / "spare_0.log").unlink()
    append(tmp_path / "spare_0.log", "promoted\n")
    follower.close()
    assert shown == [(0, b"ours\n"), (0, b"promoted\n")]


def test_core_streams_that_are_kept_apart_are_told_apart_also_of_a_spare(tmp_path: Path) -> None:
    shown: set[tuple[int, bytes, int]] = set()
    follower = Follower(
        tmp_path, lambda rank, line, stream: shown.add((rank, line, stream)), apart=True
    )
    append(tmp_path / "spare_0.stdout.log", "out of the spare\n")
    append(tmp_path / "worker_1.stdout.log", "out\n")
    append(tmp_path / "worker_1.log", f"err\n{PROMOTED} {tmp_path / 'spare_0.log'}\n")
    append(tmp_path / "spare_0.log", "err of the spare\n")
    follower.show()
    follower.close()
    assert shown == {
        (1, b"out\n", OUT),
        (1, b"err\n", ERR),
        (1, b"out of the spare\n", OUT),
        (1, b"err of the spare\n", ERR),
    }

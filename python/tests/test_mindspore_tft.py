"""MindSpore's fault tolerance (MS_ENABLE_TFT): last checkpoints, repair, replacement."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mindspore_job import NEEDS_MINDSPORE, NIGHTLY, Job, digests, job, make_data

pytestmark = [pytest.mark.kill, NEEDS_MINDSPORE]

TFT: dict[str, Any] = {"tft": True, "save": 1000}
TTP = {"MS_ENABLE_TFT": "{TTP:1}", "MINDIO_FOR_MINDSPORE": "1"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "train")


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Callable[[int], Path]:
    """Return the folder of a run without faults that has saved every step."""
    made: dict[int, Path] = {}

    def folder(ranks: int) -> Path:
        if ranks not in made:
            made[ranks] = tmp_path_factory.mktemp("calm") / "job"
            config = {**TFT, "save": 1, "keep": 100, "epochs": 1}
            with job(made[ranks], data, config, ranks=ranks, variables=TTP) as run:
                run.end()
        return made[ranks]

    return folder


READ = """
import json, sys
import mindspore as ms
ours, theirs = (ms.load_checkpoint(path) for path in sys.argv[1:3])
names = sorted(n for n in theirs if n not in ours)
equal = all((ours[n].asnumpy() == theirs[n].asnumpy()).all() for n in theirs if n in ours)
numbers = {n: int(ours[n].asnumpy()) for n in ("epoch_num", "step_num", "cur_rank", "batch_num")}
print(json.dumps([names, bool(equal), numbers]))
"""


def compare(gasp: Path, whole: Path) -> tuple[list[str], bool, dict[str, int]]:
    """Load two checkpoints by MindSpore itself, without Holdfast, and compare them."""
    command = [sys.executable, "-c", READ, str(gasp), str(whole)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    names, equal, numbers = json.loads(output.stdout.splitlines()[-1])
    return names, equal, numbers


def gasped(run: Job) -> Path:
    """Wait for a job that ends with a last checkpoint; return that file, the only one."""
    run.end(code=None)
    assert run.process.returncode not in (0, None), run.logs()
    folder = run.folder / "ttp_checkpoints"
    assert folder.is_dir(), run.logs()
    folders = [path for path in folder.iterdir() if not path.is_symlink()]
    real = [path for path in folders if ".earlier-" not in path.name]
    assert len(real) == 1, real
    step = int(real[0].name.removeprefix("ttp_saved_checkpoints-step_"))
    # The documents use another name for it.
    assert (folder / f"tft_saved_checkpoints-step_{step}").resolve() == real[0].resolve()
    (file,) = (path for path in real[0].glob("rank_*/*") if not path.is_symlink())
    saver = file.parent.name
    # The documents' scripts look for rank 0's, whoever has saved.
    found = real[0] / "rank_0" / file.name.replace(saver, "rank_0", 1)
    assert found.resolve() == file.resolve()
    return file


@pytest.mark.parametrize(
    ("ranks", "victims", "errors", "saver"),
    [
        pytest.param(2, [1], [], 0, id="rank-1", marks=NIGHTLY),
        pytest.param(2, [0], [], 1, id="rank-0"),
        pytest.param(3, [0, 2], [], 1, id="two-of-three", marks=NIGHTLY),
        pytest.param(2, [], [[1, 12, "end", "bug"]], 0, id="an-exception"),
    ],
)
def test_mindspore_a_lost_process_leaves_the_state_after_its_last_step(
    tmp_path: Path,
    data: Path,
    calm: Callable[[int], Path],
    ranks: int,
    victims: list[int],
    errors: Any,
    saver: int,
) -> None:
    config = {**TFT, "errors": errors, "pause": 0.02}
    stale = tmp_path / "job" / "ttp_checkpoints" / "ttp_saved_checkpoints-step_12"
    if errors:  # An earlier job of the same folder was lost after step 12 too.
        (stale / "rank_0").mkdir(parents=True)
        (stale / "rank_0" / f"ttp_rank_{saver}-1_12.ckpt").write_text("stale")
    with job(tmp_path / "job", data, config, ranks=ranks, spares=None, variables=TTP) as run:
        if victims:
            run.kill_at(victims[0], 12)
        for victim in victims[1:]:
            run.kill_at(victim, 12)
        file = gasped(run)
    step = int(file.parent.parent.name.rsplit("_", 1)[1])
    if errors:  # After an exception, the checkpoint is of exactly step 12.
        assert step == 12
        (aside,) = stale.parent.glob("*.earlier-1/rank_0/*")
        assert aside.read_text() == "stale"
    size = -(-1600 // ranks // 32)
    epoch, at = (step - 1) // size + 1, (step - 1) % size + 1
    assert file.name == f"ttp_rank_{saver}-{epoch}_{at}.ckpt"
    assert file.parent.name == f"rank_{saver}"
    whole = calm(ranks) / "out" / str(saver) / f"net-{saver}-{epoch}_{at}.ckpt"
    missing, equal, numbers = compare(file, whole)
    assert (missing, equal) == ([], True)
    assert numbers == {"epoch_num": epoch, "step_num": step, "cur_rank": saver, "batch_num": size}
    if errors:
        resumes_within_an_epoch(tmp_path / "again", data, file, calm(ranks))
    log = tmp_path / "job" / "logs" / f"worker_{saver}.log"
    assert "has got parameters" not in log.read_text()  # Only MindSpore's callback has.


def resumes_within_an_epoch(folder: Path, data: Path, saved: Path, whole: Path) -> None:
    """Check that a training from a last checkpoint of the first epoch leaves another one."""
    config = {**TFT, "errors": [[1, 18, "end", "bug"]], "resume": str(saved)}
    with job(folder, data, config, spares=None, variables=TTP) as run:
        file = gasped(run)
    assert (file.parent.parent.name, file.name) == (
        "ttp_saved_checkpoints-step_18",
        "ttp_rank_0-1_18.ckpt",
    )
    missing, equal, numbers = compare(file, whole / "out" / "0" / "net-0-1_18.ckpt")
    assert (missing, equal, numbers["step_num"]) == ([], True, 18)


@pytest.mark.parametrize("initial_step", [False, True])
def test_mindspore_a_second_last_checkpoint_has_the_step_of_the_whole_training(
    tmp_path: Path, data: Path, initial_step: bool
) -> None:
    with job(tmp_path / "calm", data, TFT, variables=TTP) as run:
        run.end()
    config = {**TFT, "errors": [[1, 30, "end", "bug"]]}
    with job(tmp_path / "first", data, config, spares=None, variables=TTP) as run:
        first = gasped(run)
    resumes = {**TFT, "initial_epoch": True, "initial_step": initial_step}
    # A program that adds the first steps itself counts its own from 1.
    errors = [[1, 40 - 30 * initial_step, "end", "bug"]]
    config = {**resumes, "resume": str(first), "errors": errors}
    with job(tmp_path / "second", data, config, spares=None, variables=TTP) as run:
        second = gasped(run)
    assert second.parent.parent.name == "ttp_saved_checkpoints-step_40"
    assert second.name == "ttp_rank_0-2_15.ckpt"
    assert compare(second, second)[2]["step_num"] == 40
    config = {**resumes, "resume": str(second)}
    with job(tmp_path / "third", data, config, variables=TTP) as run:
        run.end()
    third, calm = (digests(tmp_path / name)["final-0.ckpt"] for name in ("third", "calm"))
    assert third == calm  # Rank 1 began with the checkpoint of rank 0.


@pytest.mark.parametrize(
    ("ranks", "saver", "who"),
    [
        pytest.param(3, 1, {"dies_in_gasp": 0}, id="another-saves"),
        pytest.param(3, 0, {"kills_in_gasp": 1}, id="one-who-does-not-save"),
        pytest.param(2, 0, {"dies_in_gasp": 0}, id="nobody-is-left"),
    ],
)
def test_mindspore_a_kill_in_the_midst_of_the_last_checkpoint_leaves_a_whole_one(
    tmp_path: Path,
    data: Path,
    calm: Callable[[int], Path],
    ranks: int,
    saver: int,
    who: dict[str, int],
) -> None:
    config = {**TFT, **who, "pause": 0.02}
    with job(tmp_path / "job", data, config, ranks=ranks, spares=None, variables=TTP) as run:
        run.kill_at(ranks - 1, 12)
        file = gasped(run)
    assert (
        tmp_path / "job" / ("died-in-gasp" if "dies_in_gasp" in who else "killed-in-gasp")
    ).exists()
    step = int(file.parent.parent.name.rsplit("_", 1)[1])
    size = -(-1600 // ranks // 32)
    epoch, at = (step - 1) // size + 1, (step - 1) % size + 1
    assert (file.parent.name, file.name) == (f"rank_{saver}", f"ttp_rank_{saver}-{epoch}_{at}.ckpt")
    # The optimizer's state and all other values are of the same step.
    missing, equal, numbers = compare(
        file, calm(ranks) / f"out/{saver}/net-{saver}-{epoch}_{at}.ckpt"
    )
    assert (missing, equal) == ([], True)
    assert (numbers["step_num"], numbers["epoch_num"]) == (step, epoch)
    log = run.logs()
    assert ("all processes were lost; the state after" in log) is (ranks == 2), log


def test_mindspore_a_memory_error_is_repaired_in_the_process(tmp_path: Path, data: Path) -> None:
    variables = {"MS_ENABLE_TFT": "{UCE:1, TTP:1}", "MINDIO_FOR_MINDSPORE": "1"}
    # In the very first step; at the end of a step, and of an epoch; in the first step of an epoch,
    # and in the middle. What callbacks had changed at begins must count once.
    places = [(1, 1, "begin"), (1, 9, "end"), (0, 25, "end"), (1, 26, "begin"), (0, 31, "begin")]
    errors = [[*place, "uce"] for place in places]
    finals = []
    for name, config in (("calm", TFT), ("job", {**TFT, "errors": errors})):
        config = {**config, "scales": True}
        with job(tmp_path / name, data, config, variables=variables) as run:
            run.end()
            assert "fault" not in (run.folder / "logs" / "scheduler.log").read_text()
        finals.append(digests(tmp_path / name))
    assert len(list((tmp_path / "job").glob("failed-*"))) == len(errors)
    assert finals[0] == finals[1]


def test_mindspore_arf_replaces_a_process(tmp_path: Path, data: Path) -> None:
    variables = {"MS_ENABLE_TFT": "{TTP:1,UCE:1,ARF:1}", "MINDIO_FOR_MINDSPORE": "1"}
    finals = []
    for name, kills in (("calm", []), ("job", [[0, 14, "begin"], [1, 30, "end"]])):
        with job(tmp_path / name, data, {**TFT, "kills": kills}, variables=variables) as run:
            run.end()
        finals.append(digests(tmp_path / name))
    assert (tmp_path / "job" / "killed-1").exists()
    assert finals[0] == finals[1]


@pytest.mark.parametrize("mode", ["data_parallel", "stand_alone"])
def test_mindspore_a_last_checkpoint_is_rank_0s_only_where_weights_are_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    from mindspore import context

    from holdfast.mindspore import _last

    monkeypatch.setattr(context, "get_auto_parallel_context", {"parallel_mode": mode}.get)
    saved = tmp_path / "rank_12" / "ttp_rank_12-1_4.ckpt"
    saved.parent.mkdir()
    saved.write_text("weights")
    for _ in range(2):  # The second time after a loss in the midst of the first.
        said = _last._as_rank_0(tmp_path)
    found = tmp_path / "rank_0" / "ttp_rank_0-1_4.ckpt"
    if mode == "data_parallel":
        assert said == str(tmp_path) and found.read_text() == "weights"
    else:
        assert "only rank 12's" in said and not found.parent.exists()

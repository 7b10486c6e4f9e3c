"""What `holdfast snapshot export` makes of a MindSpore job is loaded by real MindSpore."""
# With --ci: whole jobs of MindSpore whose snapshots are exported.

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from everything_lost import cut_power, whole
from mindspore_job import HERE, NEEDS_MINDSPORE, Job, make_data, until
from snapshot_files import forge

from holdfast.snapshots._diff import main as compare
from holdfast.snapshots._export import main

pytestmark = NEEDS_MINDSPORE


def make(folder: Path, *program: str) -> Path:
    """Train with two ranks until there are two snapshots, and return their folder."""
    data = make_data(folder / "data", 640)
    options = f"--snapshot={folder / 'snapshots'}", "--snapshot_every=3"
    words = [str(HERE / program[0]), *program[1:]]
    job = Job(folder / "job", data, words, options=options)
    try:
        assert until(lambda: len(whole(folder / "snapshots")) >= 2), job.logs()
    finally:
        cut_power(job.process.pid)
        job.process.communicate()
    return folder / "snapshots"


def export(*words: Any, code: int = 0) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        found = main([str(word) for word in words])
    assert found == code, said.getvalue()
    return said.getvalue()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Snapshots of a job that writes MindSpore's own checkpoint after each step, too."""
    config: dict[str, Any] = {
        "graph": True,
        "optimizer": "Adam",
        "save": 1,
        "keep": 100_000,
        "schedule": True,
    }
    config["epochs"] = 1000
    return make(tmp_path_factory.mktemp("trained"), "mindspore_program.py", json.dumps(config))


def test_a_checkpoint_is_the_one_that_mindspore_wrote_after_that_step(
    trained: Path, tmp_path: Path
) -> None:
    import mindspore as ms
    from mindspore import nn

    out = tmp_path / "out.ckpt"
    # Not the newest: the one before has seen all callbacks after its step.
    said = export(whole(trained)[-1], "--to", out)
    found = ms.load_checkpoint(str(out))
    step = int(found["step_num"])
    assert f"step {step} as ckpt of rank 0" in said
    epoch, batch = (step - 1) // 10 + 1, (step - 1) % 10 + 1
    there = ms.load_checkpoint(str(trained.parent / f"job/out/0/net-0-{epoch}_{batch}.ckpt"))
    assert int(found["epoch_num"]) == epoch
    assert {name for name in there if name != "loss_scale"} - found.keys() <= {"current_step_num"}
    for name, value in there.items():
        if name in found and name not in ("epoch_num", "step_num"):
            mine, its = found[name].asnumpy(), value.asnumpy()
            assert mine.dtype == its.dtype and mine.shape == its.shape, name
            assert mine.tobytes() == its.tobytes(), name
    network = nn.SequentialCell(nn.Flatten(), nn.Dense(784, 32), nn.BatchNorm1d(32))
    for part, name in ((network[1], "fc1"), (network[2], "norm")):
        part.update_parameters_name(f"{name}.")
    optimizer = nn.Adam(network.trainable_params(), nn.cosine_decay_lr(0.0, 0.01, 300, 10, 5))
    for cell in (network, optimizer):
        missing, _ = ms.load_param_into_net(cell, found)
        assert missing == []
    now = {parameter.name: parameter.asnumpy() for parameter in optimizer.get_parameters()}
    assert (now["moment1.fc1.weight"] == found["moment1.fc1.weight"].asnumpy()).all()
    assert int(now["global_step"][0]) == step


def test_safetensors_have_all_parameters(trained: Path, tmp_path: Path) -> None:
    import mindspore as ms

    export(trained, "--to", tmp_path / "out.ckpt")
    export(trained, "--to", tmp_path / "out", "--format", "safetensors", "--rank", "all")
    wanted = ms.load_checkpoint(str(tmp_path / "out.ckpt"))
    raw = (tmp_path / "out" / "rank-0.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    about = header.pop("__metadata__")
    assert int(about["step"]) == int(wanted["step_num"])
    assert header.keys() == wanted.keys() - {"epoch_num", "step_num"}
    for name, tensor in header.items():
        begin, end = (8 + length + at for at in tensor["data_offsets"])
        kind = {"F32": np.float32, "I32": np.int32}[tensor["dtype"]]
        found = np.frombuffer(raw[begin:end], kind).reshape(tensor["shape"])
        assert (found == wanted[name].asnumpy()).all(), name


def test_a_loop_of_the_programs_own_is_exported(tmp_path: Path) -> None:
    import mindspore as ms

    snapshots = make(tmp_path, "mindspore_state.py", "pynative")
    export(snapshots, "--to", tmp_path / "out")  # MindSpore itself would add an ending.
    found = ms.load_checkpoint(str((tmp_path / "out").rename(tmp_path / "named.ckpt")))
    assert found["moment1.1.weight"].shape == (16, 784) and int(found["step_num"]) > 0
    said = export(snapshots, "--to", tmp_path / "no", "--format", "torch", code=1)
    assert "of MindSpore, which goes as ckpt and safetensors" in said


def test_what_differs_is_named(trained: Path) -> None:
    newer, older = whole(trained)[:2]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert compare([str(newer), str(newer)]) == 0
        assert compare([str(older), str(newer)]) == 1
    rows = [line for line in said.getvalue().splitlines() if "max |a-b| = " in line]
    assert any(".weight: " in row and "bytes differ, the first at " in row for row in rows), rows
    assert "not compared" not in said.getvalue(), said.getvalue()


def test_damage_and_strangers_are_refused_by_name(trained: Path, tmp_path: Path) -> None:
    folder = whole(trained)[0]
    path = folder / "rank-0.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    said = export(folder, "--to", tmp_path / "out", code=1)
    assert f"{path} is damaged, or of no snapshot: its tensor `" in said
    raw[-1] ^= 1
    path.write_bytes(raw)

    def change(name: str, content: bytearray) -> None:
        if content.startswith(b"hfmsimg2"):  # The table of parameters comes from somebody else.
            mark = str(tmp_path / "ran").encode()
            evil = b"cos\nsystem\n(S'touch " + mark + b"'\ntR."
            content[32 : 32 + len(evil)] = evil

    forge(folder, 0, change)
    said = export(folder, "--to", tmp_path / "out", code=1)
    assert f"{path} is damaged, or of no snapshot: its image makes no sense" in said
    assert not (tmp_path / "ran").exists() and not (tmp_path / "out").exists()

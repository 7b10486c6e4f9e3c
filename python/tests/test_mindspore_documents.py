"""The programs of MindSpore's documents, run as they are with Holdfast's msrun."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import mindspore_documents as documents
import pytest
from mindspore_job import LIMIT_S, NEEDS_MINDSPORE, NIGHTLY, digests, free_port, make_data, until

pytestmark = [
    pytest.mark.kill,
    NEEDS_MINDSPORE,
    pytest.mark.skipif(
        documents.folder() is None,
        reason="the documents are not here; HOLDFAST_SEEDS names their folder",
    ),
]

# Lines that the first document takes from the second one's program without printing them.
PREAMBLE = """
import os
import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn
from mindspore.communication import init, get_rank, get_group_size
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
init()
ms.set_seed(1)
net = nn.SequentialCell(nn.Flatten(), nn.Dense(28 * 28, 10, "normal", "zeros"), nn.ReLU())
data_set = ds.MnistDataset(os.getenv("DATA_PATH"), num_shards=get_group_size(), shard_id=get_rank())
data_set = data_set.map([ds.vision.Rescale(1.0 / 255.0, 0), ds.vision.HWC2CHW()], "image")
data_set = data_set.map(ds.transforms.TypeCast(ms.int32), "label").batch(32)
"""


class Shell:
    """A shell script of a document, under `python -m holdfast.mindspore`."""

    def __init__(self, folder: Path, script: str, port: int, *arguments: str, **more: str) -> None:
        # Use a free port, and wait for what the script starts in the background.
        script = re.sub(r"(MS_SCHED_PORT=|--master_port=)\d+", rf"\g<1>{port}", script)
        script = script.replace("--join=False", "--join=True")
        name = f"script-{len(list(folder.glob('script-*')))}.sh"
        (folder / name).write_text(f"{script}\ncode=$?\nwait\nexit $code\n")
        environment = dict(os.environ, EXEC_PATH=str(folder), GLOG_v="3", **more)
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.mindspore", "bash", name, *arguments],
            cwd=folder,
            env=environment,
            start_new_session=True,
        )

    def end(self) -> int:
        return self.process.wait(LIMIT_S)

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def process_of(folder: Path, **variables: str) -> int | None:
    """Return the Python process in a folder that was started with these variables.

    A forked process shows the nursery's environment instead. Its nursling, which leads its process
    group, shows the right one.
    """
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "environ").read_bytes().decode(errors="replace").split("\0")
            here = Path(os.readlink(path / "cwd")) == folder
            program = os.readlink(path / "exe")
        except OSError:
            continue
        if not here or not all(f"{k}={v}" in words for k, v in variables.items()):
            continue
        if any(word.startswith("HOLDFAST_REHEARSE=") for word in words):
            continue
        if "python" in program:
            return int(path.name)
        if program.endswith("/nursling"):
            return forked_for(int(path.name))
    return None


def forked_for(nursling: int) -> int | None:
    """Return the process that a nursling stands for."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(path.name)
            if pid != nursling and os.getpgid(pid) == nursling:
                return pid
    return None


def matches(path: Path, pattern: str) -> bool:
    return path.exists() and re.search(pattern, path.read_text(errors="replace")) is not None


@NIGHTLY
def test_mindspore_the_disaster_recovery_document(tmp_path: Path) -> None:
    train, run_sh, recover_sh = documents.disaster_recovery()
    results = []
    for kind in ("calm", "killed"):
        folder = tmp_path / kind
        make_data(folder / "MNIST_Data" / "train", 3200)
        (folder / "train.py").write_text(PREAMBLE + train)
        port = free_port()
        started = [Shell(folder, run_sh, port)]
        try:
            if kind == "killed":
                log = folder / "device" / "worker_3.log"
                assert until(lambda log=log: matches(log, r"epoch: 2 step"))
                for variables in ({"MS_NODE_ID": "3"}, {"MS_ROLE": "MS_SCHED"}):
                    pid = process_of(folder, **variables)
                    assert pid is not None
                    os.kill(pid, signal.SIGKILL)
                # Restart the scheduler by the document's lines, and a worker by its run.sh.
                started.append(Shell(folder, recover_sh, port))
                head = run_sh[: run_sh.index("rm -rf device")]
                body = run_sh[run_sh.index("for((i=0") : run_sh.index("done")] + "done"
                body = body.replace("i=0;i<8", "i=3;i<4").replace("worker_$i.log", "again_$i.log")
                started.append(Shell(folder, head + body, port))
            assert [shell.end() for shell in started] == [0] * len(started)
        finally:
            for shell in started:
                shell.stop()
        results.append(digests(folder))
    assert results[0] == results[1]
    assert len({results[1][f"ckpt_of_rank/{r}/train-10_13.ckpt"] for r in range(8)}) == 1


# Parts that the second document leaves out of its program. Its script starts it by pytest.
RESNET = """
from mindspore import nn
import mindspore.dataset as ds
import os


def test_train():
{block}
    from mindspore.communication import get_rank, get_group_size
    ms.set_seed(1)
    net = nn.SequentialCell(nn.Flatten(), nn.Dense(28 * 28, 10))
    path = os.environ["DATA_PATH"]
    data = ds.MnistDataset(path, num_shards=get_group_size(), shard_id=get_rank())
    data = data.map([ds.vision.Rescale(1.0 / 255.0, 0), ds.vision.HWC2CHW()], "image")
    data = data.map(ds.transforms.TypeCast(ms.int32), "label").batch(32)
    config = CheckpointConfig(save_checkpoint_steps=10, keep_checkpoint_max=5)
    kept = ModelCheckpoint(prefix="train", directory=f"ckpt_of_rank/{{get_rank()}}", config=config)
    optimizer = nn.SGD(net.trainable_params(), 1e-2)
    model = ms.Model(net, loss_fn=nn.CrossEntropyLoss(), optimizer=optimizer)
    model.train(4, data, callbacks=[ms.train.LossMonitor(5), kept])
"""


@NIGHTLY
def test_mindspore_the_dynamic_networking_document(tmp_path: Path) -> None:
    head, block, script, recovery = documents.dynamic_networking()
    results = []
    for kind in ("calm", "killed"):
        folder = tmp_path / kind
        data = make_data(folder / "data" / "train", 3200)
        (folder / "resnet50_distributed_training_gpu.py").write_text(
            head + RESNET.format(block=block)
        )
        (folder / "resnet.py").write_text("")
        port = free_port()
        recovery = recovery.replace("/path/to/recovery/", str(folder / "recovery"))
        started = [Shell(folder, recovery + script, port, str(data))]
        try:
            if kind == "killed":
                log = folder / "device" / "worker_3.log"
                assert until(lambda log=log: matches(log, r"epoch: 2 step"))
                pid = process_of(folder / "device", MS_NODE_ID="3")
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                # "Start the same script of that process again, with the same variables."
                body = script[script.index("for((i=0") : script.index("done")] + "done"
                body = body.replace("i=0;i<8", "i=3;i<4").replace("worker_$i.log", "again_$i.log")
                body = f"{recovery}\nexport DATA_PATH={data}\ncd device\n{body}"
                started.append(Shell(folder, body, port))
            assert [shell.end() for shell in started] == [0] * len(started)
        finally:
            for shell in started:
                shell.stop()
        results.append(digests(folder / "device"))
    assert results[0] == results[1]
    assert len({d for name, d in results[1].items() if name.endswith("train-4_13.ckpt")}) == 1
    assert len(results[1]) == 8 * 5


@NIGHTLY
@pytest.mark.parametrize("victim", [0, 1])
def test_mindspore_the_dying_gasp_document(tmp_path: Path, victim: int) -> None:
    program, msrun_sh, resume_sh = documents.dying_gasp()
    make_data(tmp_path / "MNIST_DATA" / "train", 128)
    case = tmp_path / "mindio_ttp_case.py"
    case.write_text(program)
    first = Shell(tmp_path, msrun_sh, free_port())
    try:
        log = tmp_path / "msrun_log" / "worker_1.log"
        assert until(lambda: matches(log, "epoch: 2 step: 2"))
        pid = process_of(tmp_path, MS_NODE_ID=str(victim))
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert first.end() != 0
    finally:
        first.stop()
    (file,) = (tmp_path / "ttp_checkpoints").glob("tft_saved_checkpoints-step_*/rank_0/*.ckpt")
    found: Any = re.fullmatch(r"ttp_rank_0-(\d+)_(\d+)\.ckpt", file.name)
    epoch, step = int(found[1]), int(found[2])
    assert file.parent.parent.name == f"tft_saved_checkpoints-step_{4 * (epoch - 1) + step}"
    # The document asks its reader to write these two numbers into the program.
    program = re.sub(r"cur_epoch = \d+", f"cur_epoch = {epoch}", program)
    case.write_text(re.sub(r"cur_step = \d+", f"cur_step = {step}", program))
    again = Shell(tmp_path, resume_sh, free_port())
    try:
        assert again.end() == 0
    finally:
        again.stop()
    assert matches(tmp_path / "msrun_log" / "worker_0.log", "epoch: 5 step: 4")


@pytest.mark.parametrize(
    "document", [documents.uce, pytest.param(documents.uce_plain, marks=NIGHTLY)]
)
def test_mindspore_the_uce_documents(tmp_path: Path, document: Any) -> None:
    program, shell = document()
    make_data(tmp_path / "MNIST_DATA" / "train", 64)
    (tmp_path / "UCE_case.py").write_text(program)
    run = Shell(tmp_path, shell, free_port())
    try:
        assert run.end() == 0
    finally:
        run.stop()
    for rank in range(4):
        assert matches(tmp_path / "uce_logs" / f"worker_{rank}.log", "epoch: 5 step: 2")

"""set_param_ps(): MindSpore's numbers, the same bits whatever dies, and errors by name."""
# With --ci: whole jobs with parameter servers, and kills of all their kinds of processes.

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from mindspore_job import HERE, NEEDS_MINDSPORE, Job, digests, free_port, make_data, until

pytestmark = NEEDS_MINDSPORE

PROGRAM = [str(HERE / "mindspore_served.py")]
Config = dict[str, Any]


class Ended(NamedTuple):
    """What a job has left."""

    digests: set[str]  # Of the parameters of all ranks, and of the last losses.
    slots: float  # The largest of the worker's own moments.
    values: list[Any]
    killed: list[str]


def run(folder: Path, config: Config, ranks: int = 2, servers: int = 1, spares: int = 0) -> Ended:
    port = free_port()
    options = (f"--master_port={port}", *((f"--server_num={servers}",) if servers else ()))
    variables = {"HOLDFAST_TEST_PORT": str(port)}
    program = [*PROGRAM, json.dumps(config)]
    made = Job(folder, folder, program, ranks, spares=spares, options=options, variables=variables)
    try:
        made.end()
    finally:
        made.stop()
    results = [json.loads((folder / f"result-{rank}").read_text()) for rank in range(ranks)]
    with np.load(folder / "values-0.npz") as kept:
        values = [kept[name] for name in kept]
    killed = sorted(path.name for path in folder.glob("killed-*"))
    assert all(f"killed-{step}-{place}" in killed for step, place, _ in config.get("kills", []))
    found = {f"{one['digest']} {one['loss']}" for one in results}
    return Ended(found, max(one["slots"] for one in results), values, killed)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Momentum without servers, on one worker: MindSpore's own."""
    folder = tmp_path_factory.mktemp("calm") / "job"
    ended = run(folder, {"loop": "own", "without": True}, ranks=1, servers=0)
    assert ended.slots > 0
    return ended


@pytest.mark.parametrize("loop", ["model", "own", "state"])
@pytest.mark.parametrize(("ranks", "servers"), [(1, 1), (2, 1), (2, 3)])
def test_mindspore_served_parameters_have_the_bits_of_mindspores_own_momentum(
    tmp_path: Path, calm: Ended, loop: str, ranks: int, servers: int
) -> None:
    ended = run(tmp_path / "job", {"loop": loop}, ranks, servers)
    assert ended.digests == calm.digests
    assert ended.slots == 0  # The worker's optimizer has updated nothing.


@pytest.mark.parametrize(
    ("config", "tolerance"),
    [
        ({"optimizer": "SGD", "full_batch": True}, 0),
        ({"optimizer": "SGD", "momentum": 0.9, "nesterov": True}, 0),
        ({"schedule": True}, 0),
        ({"groups": True}, 0),
        ({"part": True, "groups": True, "schedule": True}, 0),
        ({"part": True, "data_parallel": True, "loop": "model"}, 0),
        ({"part": True, "full_batch": True}, 0),
        # MindSpore takes the powers of Adam's betas in float32.
        ({"optimizer": "Adam"}, 1e-4),
        ({"optimizer": "LazyAdam"}, 1e-4),
        ({"optimizer": "FTRL"}, 1e-6),
        ({"optimizer": "FTRL", "lookup": True}, 1e-6),  # Untouched rows stay as they began.
        ({"optimizer": "LazyAdam", "lookup": True}, 5e-4),
        ({"optimizer": "Adam", "lookup": True, "loop": "model"}, 5e-4),
    ],
    ids=str,
)
def test_mindspore_served_optimizers_compute_what_mindspores_do(
    tmp_path: Path, config: Config, tolerance: float
) -> None:
    config = {"loop": "own", **config}
    alone = run(tmp_path / "alone", {**config, "without": True}, ranks=1, servers=0)
    one = run(tmp_path / "one", config, ranks=1)
    two = run(tmp_path / "two", config, servers=2)
    assert one.digests == two.digests
    for mine, theirs in zip(one.values, alone.values):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance)


@pytest.mark.kill
@pytest.mark.parametrize("loop", ["model", "state", "own"])
@pytest.mark.parametrize(
    ("kills", "servers", "spares"),
    [
        ([[4, "begin", ["server"]], [8, "end", ["server"]]], 1, 0),
        ([[5, "end", ["servers"]], [7, "end", ["scheduler"]]], 2, 0),
        ([[6, "begin", ["worker"]]], 1, 1),
        ([[6, "end", ["worker", "server"]]], 1, 0),
    ],
    ids=["server", "servers-scheduler", "worker", "worker-server"],
)
def test_mindspore_served_parameters_outlive_any_process(
    tmp_path: Path, calm: Ended, loop: str, kills: list[Any], servers: int, spares: int
) -> None:
    ended = run(tmp_path / "job", {"loop": loop, "kills": kills}, 2, servers, spares)
    assert ended.digests == calm.digests
    logs = "".join(log.read_text() for log in (tmp_path / "job" / "logs").glob("worker_*.log"))
    lost = any("worker" in victims for *_, victims in kills)
    # A loop of the program's own goes on after a server's death, but not after a worker's.
    assert ("all workers start again from the top" in logs) == (loop == "own" and lost)


def test_mindspore_workers_that_begin_otherwise_get_rank_0s_parameters(tmp_path: Path) -> None:
    for loop in ("model", "own"):
        ended = run(tmp_path / loop, {"loop": loop, "seed": False})
        assert len(ended.digests) == 1


def test_mindspore_lenet_with_servers_is_started_by_hand_in_every_role(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data" / "train", 640)
    folders = {}
    for name, servers, workers in (("few", 1, 1), ("many", 2, 2)):
        folders[name] = folder = tmp_path / name
        folder.mkdir()
        by_hand(folder, data, servers, workers)
        texts = [(folder / f"MS_WORKER-{i}.log").read_text() for i in range(workers)]
        assert all("ACCURACY" in text for text in texts)
    few, many = (digests(folder) for folder in folders.values())
    assert len(few) > 1  # Several checkpoints.
    assert set(few.items()) < set(many.items())
    assert len(set(many.values())) == len(few)  # Both workers write the same ones.


def by_hand(
    folder: Path, data: Path, servers: int, workers: int, program: tuple[str, ...] = ()
) -> int:
    """Start all processes, and servers that were killed again; return how many these were."""
    port = str(free_port())
    usual = {
        **os.environ,
        **{"OMP_NUM_THREADS": "1", "GLOG_v": "3", "DATA_PATH": str(data)},
        **{"MS_SERVER_NUM": str(servers), "MS_WORKER_NUM": str(workers)},
        **{"MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": port, "HOLDFAST_TEST_PORT": port},
    }
    command = [sys.executable, "-m", "holdfast.mindspore", "python"]
    command += program or (str(HERE / "mindspore_served_lenet.py"),)

    def start(role: str, i: int) -> subprocess.Popen[bytes]:
        environment = {**usual, "MS_ROLE": role, "MS_NODE_ID": f"{role[3:].lower()}{i}"}
        with (folder / f"{role}-{i}.log").open("a") as log:
            return subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    roles = (("MS_SCHED", 1), ("MS_PSERVER", servers), ("MS_WORKER", workers))
    running = {(role, i): start(role, i) for role, count in roles for i in range(count)}
    killed = 0
    try:
        while running:
            assert until(lambda: any(p.poll() is not None for p in running.values())), said(folder)
            for key, process in list(running.items()):
                if process.poll() == -signal.SIGKILL and key[0] == "MS_PSERVER":
                    running[key], killed = start(*key), killed + 1
                elif process.poll() is not None:
                    assert process.poll() == 0, said(folder)
                    del running[key]
    finally:
        for process in running.values():
            process.kill()
    return killed


def said(folder: Path) -> str:
    return "".join(f"--- {log}\n{log.read_text()[-3000:]}" for log in folder.glob("*.log"))


@pytest.mark.kill
def test_mindspore_a_server_that_was_started_by_hand_is_started_again(
    tmp_path: Path, calm: Ended
) -> None:
    kills = [[4, "begin", ["server"]], [8, "end", ["server"]]]
    config = json.dumps({"loop": "own", "kills": kills})
    assert by_hand(tmp_path, tmp_path, 1, 2, (*PROGRAM, config)) == 2
    results = [json.loads((tmp_path / f"result-{rank}").read_text()) for rank in range(2)]
    assert {f"{one['digest']} {one['loss']}" for one in results} == calm.digests


# ---- Errors -------------------------------------------------------------------------------------

ERRORS = """
import numpy as np
import mindspore as ms
from mindspore import nn
from mindspore.communication import init
from holdfast.mindspore import _served_optimizers

def said(call, *given, **named):
    try:
        call(*given, **named)
    except Exception as error:
        print("SAID", type(error).__name__, error, flush=True)
    else:
        print("SAID nothing", flush=True)

ms.set_context(mode=ms.GRAPH_MODE)
said(nn.Dense(4, 2).set_param_ps)
said(ms.set_ps_context, enable_ps=1)
ms.set_ps_context(enable_ps=True)
assert ms.get_ps_context("enable_ps")
ms.reset_ps_context()
assert not ms.get_ps_context("enable_ps")
said(nn.Dense(4, 2).set_param_ps)
ms.set_ps_context(enable_ps=True)
init()
ms.set_context(mode=ms.PYNATIVE_MODE)
said(nn.Dense(4, 2).set_param_ps)
ms.set_context(mode=ms.GRAPH_MODE)
said(nn.Dense(4, 2).weight.set_param_ps, init_in_server=True)
said(nn.Dense(4, 2).to_float(ms.float16).set_param_ps)
said(ms.Parameter(ms.Tensor(np.zeros(3, np.float16)), name="half").set_param_ps)
_served_optimizers._MOST_BYTES = 4 * 2000
said(ms.Parameter(ms.Tensor(np.zeros(2001, np.float32)), name="large").set_param_ps)
_served_optimizers._MOST_BYTES = 2**31 - 1
net = nn.Dense(4, 2)
net.set_param_ps()
said(nn.Adagrad, net.trainable_params())
said(nn.AdamWeightDecay, net.trainable_params())
said(nn.SGD, net.trainable_params(), 0.1, 0.9, 0.5)
said(nn.Adam, net.trainable_params(), use_amsgrad=True)
said(nn.FTRL, net.trainable_params(), lr_power=-0.4)

class Mine(nn.SGD):
    pass

said(Mine, net.trainable_params())
"""


def test_mindspore_what_servers_do_not_offer_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ERRORS)
    options = ("--server_num=1", "--max_restarts=0")
    made = Job(tmp_path, tmp_path, [str(tmp_path / "program.py")], 1, options=options)
    try:
        made.end(code=None)
    finally:
        made.stop()
    lines = (tmp_path / "logs" / "worker_0.log").read_text().splitlines()
    found = [line.removeprefix("SAID ") for line in lines if line.startswith("SAID ")]
    steps = "RuntimeError Must complete following two steps before calling set_param_ps: "
    expected = [
        steps,
        "TypeError The parameter 'enable_ps' must be <class 'bool'>, but got <class 'int'>",
        steps,
        "RuntimeError Parameter server is not supported in PyNative mode: ",
        "UserError set_param_ps(init_in_server=True) of 'weight': only the embedding_table of ",
        "nothing",  # Its weights are float32.
        "UserError parameter 'half' is of type Float16: servers keep Float32",
        "UserError parameter 'large' has 8004 bytes: the size of a weight with set_param_ps() must "
        "not exceed INT_MAX ",
        "UserError parameter 'weight' has set_param_ps(), and servers have no optimizer Adagrad; "
        "they have Momentum, SGD, Adam, LazyAdam, FTRL",
        "UserError parameter 'weight' has set_param_ps(), and servers have no optimizer AdamWeight",
        "UserError nn.SGD of parameters with set_param_ps() has no dampening",
        "UserError nn.Adam of parameters with set_param_ps() has no use_amsgrad",
        "UserError nn.FTRL of parameters with set_param_ps() has no lr_power=-0.4, only -0.5",
        "UserError parameter 'weight' has set_param_ps(), and servers have no optimizer Mine; ",
    ]
    assert len(found) == len(expected), lines
    for said, wanted in zip(found, expected):
        assert said.startswith(wanted), found


def test_mindspore_enable_ps_needs_servers(tmp_path: Path) -> None:
    program = [*PROGRAM, "{}"]
    made = Job(tmp_path, tmp_path, program, 1, options=("--max_restarts=0",))
    try:
        made.end(code=1)
    finally:
        made.stop()
    text = (tmp_path / "logs" / "worker_0.log").read_text()
    assert "UserError: set_ps_context(enable_ps=True) needs parameter servers, and this " in text


@pytest.mark.parametrize("loop", ["model", "own"])
def test_mindspore_a_gradient_that_is_no_number_is_refused_by_name(
    tmp_path: Path, loop: str
) -> None:
    program = [*PROGRAM, json.dumps({"loop": loop, "nan": 3})]
    options = ("--server_num=1", "--max_restarts=0")
    made = Job(tmp_path, tmp_path, program, options=options)
    try:
        made.end(code=1)
    finally:
        made.stop()
    logs = "".join(log.read_text() for log in (tmp_path / "logs").glob("worker_*.log"))
    assert " has a gradient of parameter 'fc1.weight' that is no finite number; state.check" in logs

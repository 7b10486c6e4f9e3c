"""What torchrun's options do under `holdfast run`: streams, signals, ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast._torchrun import _counted_by_torch

LIMIT_S = 150


def start(folder: Path, text: str, *options: str, **variables: str) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(text)
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.run", "--log-dir=log", *options, "program.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, **variables},
    )


def end_of(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def run(folder: Path, text: str, *options: str, **variables: str) -> tuple[int, str, str]:
    with start(folder, text, *options, **variables) as process:
        out, err = end_of(process)
    return process.returncode, out, err


def wait_for(*paths: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline, paths
        time.sleep(0.02)


SPEAKS = """
import os, sys
print("out", os.environ["RANK"])
print("err", os.environ["RANK"], file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("options", "out", "err"),
    [
        (["-r=1"], [], ["err 0", "err 1"]),
        (["-r=2"], ["out 0", "out 1"], []),
        (["-r=0:1,1:2"], ["out 1"], ["err 0"]),
        (["-r=3", "-t=1"], ["out 0", "out 1"], []),
        (["-t=1:2"], ["out 0", "out 1"], ["err 0", "err 1"]),
        (["-r=1", "--local-ranks-filter=1"], [], ["err 1"]),
        (["-r=3"], [], []),
    ],
)
def test_core_streams_go_where_the_options_say(
    tmp_path: Path, options: list[str], out: list[str], err: list[str]
) -> None:
    code, *shown = run(tmp_path, SPEAKS, "--nproc-per-node=2", *options)
    assert code == 0, shown
    found = [
        sorted(line.partition(":")[2] for line in text.splitlines() if line.startswith("[default"))
        for text in shown
    ]
    assert found == [out, err]
    apart = options != ["-r=3"]
    for rank in (0, 1):
        logs = [tmp_path / "log" / f"worker_{rank}.log"]
        logs += [tmp_path / "log" / f"worker_{rank}.stdout.log"] if apart else []
        texts = [f"err {rank}\n", f"out {rank}\n"] if apart else [f"out {rank}\nerr {rank}\n"]
        assert [log.read_text() for log in logs] == texts


def test_core_lines_that_filters_name_get_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "filtered_stdout.log").write_text("of a former job\n")
    code, out, err = run(
        tmp_path,
        SPEAKS,
        "--nproc-per-node=2",
        "-t=0:3,1:2",
        "--duplicate-stdout-filters=x,,y,out",
        "--duplicate-stderr-filters=1",
        TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="<${role_name} ${rank} ${local_rank}>",
    )
    assert code == 0, out + err
    assert (tmp_path / "log" / "filtered_stdout.log").read_text() == "<default 0 0>out 0\n"
    assert (tmp_path / "log" / "filtered_stderr.log").read_text() == "<default 1 1>err 1\n"
    assert "<default 1 1>out 1\n" in out


LISTENS = """
import os, signal, time
from pathlib import Path

rank, got = os.environ["RANK"], []
def note(number, _):
    got.append(number)
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, note)
Path("ready-" + rank).touch()
while len(got) < {wanted}:
    time.sleep(0.01)
print("got", *sorted(got), flush=True)
"""


def test_core_sigusr1_and_sigusr2_reach_the_ranks_and_the_job_goes_on(tmp_path: Path) -> None:
    with start(tmp_path, LISTENS.format(wanted=2), "--nproc-per-node=2") as process:
        wait_for(tmp_path / "ready-0", tmp_path / "ready-1")
        process.send_signal(signal.SIGUSR1)
        process.send_signal(signal.SIGUSR2)
        out, err = end_of(process)
    assert process.returncode == 0, out + err
    assert sorted(out.splitlines()) == ["[default0]:got 10 12", "[default1]:got 10 12"]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_core_a_signal_to_handle_ends_the_job_and_the_ranks_get_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    named = f"--signals-to-handle=SIGTERM,{number.name}"
    with start(tmp_path, LISTENS.format(wanted=1), "--nproc-per-node=2", named) as process:
        wait_for(tmp_path / "ready-0", tmp_path / "ready-1")
        process.send_signal(number)
        out, err = end_of(process)
    assert process.returncode == 128 + number, out + err
    said = [f"[default{rank}]:got {int(number)}" for rank in (0, 1)]
    assert sorted(out.splitlines()) == said


# Longer than msrun's 5 s.
SAVES = """
import os, signal, time
def save(*_):
    end = time.monotonic() + 5.5
    while time.monotonic() < end:
        time.sleep(0.1)
    print("saved", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
open("ready", "w").close()
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize(("options", "saved"), [([], True), (["--shutdown-timeout=0"], False)])
def test_core_processes_have_the_shutdown_timeout_for_their_end(
    tmp_path: Path, options: list[str], saved: bool
) -> None:
    with start(tmp_path, SAVES, *options) as process:
        wait_for(tmp_path / "ready")
        process.terminate()
        out, err = end_of(process)
    assert process.returncode == 143
    assert ("saved" in out) == saved, out + err


@pytest.mark.parametrize(
    ("options", "variables", "told"),
    [
        ([], {}, "30.0"),
        ([], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}, "7.0"),
        (["--shutdown-timeout=8"], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}, "8.0"),
        ([], {"HOLDFAST_SHUTDOWN_TIMEOUT": "9"}, "9"),
        (["--snapshot=s"], {}, "None"),
    ],
)
def test_core_the_shutdown_timeout_is_torchruns_but_for_snapshots(
    tmp_path: Path, options: list[str], variables: dict[str, str], told: str
) -> None:
    text = "import os\nprint(os.environ.get('HOLDFAST_SHUTDOWN_TIMEOUT'))"
    code, out, err = run(tmp_path, text, *options, **variables)
    assert (code, out) == (0, f"{told}\n"), err


def test_core_a_failed_rank_leaves_its_error_where_the_launchers_starter_looks(
    tmp_path: Path,
) -> None:
    text = """
import os
if os.environ["RANK"] == "1":
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        file.write("of rank 1")
    os._exit(3)
"""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "error_0.json").write_text("of a former job")
    code, out, err = run(
        tmp_path,
        text,
        "--nproc-per-node=2",
        "--max-restarts=0",
        TORCHELASTIC_ERROR_FILE=str(tmp_path / "wanted"),
    )
    assert code == 3, out + err
    assert (tmp_path / "wanted").read_text() == "of rank 1"
    assert (tmp_path / "log" / "error_1.json").read_text() == "of rank 1"


DEVICES = """
class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 4)
class xpu(cuda):
    device_count = staticmethod(lambda: 3)
class accelerator:
    @staticmethod
    def current_accelerator(check):
        class kind:
            type = "xpu"
        return kind
"""


@pytest.mark.parametrize(
    ("torch", "kind", "count"),
    [
        (DEVICES, "gpu", 4),
        (DEVICES, "xpu", 3),
        (DEVICES, "auto", 3),
        (DEVICES.replace("class accelerator", "class nothing"), "auto", 4),
        (DEVICES.replace("True", "False"), "gpu", 0),
        ("raise ImportError", "auto", 0),
    ],
)
def test_core_processes_for_each_device_are_counted_by_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str, kind: str, count: int
) -> None:
    (tmp_path / "torch.py").write_text(torch)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert _counted_by_torch(kind) == count


def test_core_run_path_goes_before_no_python_and_module(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, "print('Python')", "--run-path", "--no-python", "-m")
    assert (code, out) == (0, "Python\n"), err


@pytest.mark.parametrize(
    ("options", "variables", "said"),
    [
        (["-r=4"], {}, "--redirects is '4'; allowed is 0 (nothing)"),
        (["-t=0:1,x"], {}, "--tee is '0:1,x'; allowed is 0 (nothing)"),
        (["--signals-to-handle=SIGWINCH"], {}, "--signals-to-handle has 'SIGWINCH'; allowed are"),
        (["--nproc-per-node=gpus"], {}, "--nproc-per-node is 'gpus'; allowed is"),
        ([], {"PET_STANDALONE": "yes"}, "PET_STANDALONE is 'yes'; allowed is 0 or 1"),
        (["--numa-binding=node"], {}, "--numa-binding is not offered: have numactl start"),
    ],
)
def test_core_what_torchruns_options_can_not_have_is_said(
    tmp_path: Path, options: list[str], variables: dict[str, str], said: str
) -> None:
    code, out, err = run(tmp_path, "", *options, **variables)
    assert (code, out) == (2, "")
    assert err.startswith(f"holdfast: {said}"), err


FILLS = """
import resource
from holdfast._output import outlive_a_full_disk
outlive_a_full_disk()
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
for _ in range(100):
    print("x" * 1000, flush=True)
open("went-on", "w").close()
"""


def test_core_a_full_disk_under_a_log_of_one_stream_ends_that_log_alone(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, FILLS, "-r=1", "--max-restarts=0")
    assert (code, out) == (0, ""), err
    assert (tmp_path / "went-on").exists()
    assert (tmp_path / "log" / "worker_0.stdout.log").stat().st_size == 4096

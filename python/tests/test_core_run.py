"""`holdfast run` as a user of torchrun has it: output, variables, restarts of all, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LIMIT_S = 150


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "run", "--log-dir", str(folder / "log"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,  # So a test can signal the launcher's group, as a terminal does.
    )


def run(folder: Path, *words: str) -> tuple[int, str, str]:
    with start(folder, *words) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise
    return process.returncode, out, err


def program(folder: Path, text: str) -> str:
    path = folder / "program.py"
    path.write_text(text)
    return str(path)


def test_core_the_output_of_several_ranks_is_shown_by_rank(tmp_path: Path) -> None:
    script = program(
        tmp_path,
        "import sys\nprint('to out')\nprint('to err', file=sys.stderr)\nprint('part', end='')",
    )
    code, out, err = run(tmp_path, "--nproc-per-node=2", script)
    assert code == 0, err
    for rank in (0, 1):
        mine = [line for line in out.splitlines() if line.startswith(f"[default{rank}]:")]
        assert [line.partition(":")[2] for line in mine] == ["to out", "to err", "part"]
        assert (tmp_path / "log" / f"worker_{rank}.log").read_text() == "to out\nto err\npart"
    assert "to out" not in err


def test_core_a_terminal_that_takes_no_more_does_not_end_the_job(tmp_path: Path) -> None:
    text = "import sys\nprint('shown', flush=True)\nopen(sys.argv[1], 'w').write('ended')"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "holdfast",
                "run",
                "--log-dir=log",
                program(tmp_path, text),
                "end",
            ],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            timeout=LIMIT_S,
        )
    assert done.returncode == 0, done.stderr
    assert "can not be shown any more (No space left on device)" in done.stderr
    assert (tmp_path / "end").read_text() == "ended"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--nproc-per-node=1"], ["rank 0"]),
        (["--nproc-per-node=2", "--local-ranks-filter=1", "--role=w"], ["[w1]:rank 1"]),
        (["--nproc-per-node=2", "-r", "3"], []),
    ],
)
def test_core_what_the_terminal_shows_can_be_chosen(
    tmp_path: Path, options: list[str], shown: list[str]
) -> None:
    script = program(tmp_path, "import os\nprint('rank', os.environ['RANK'])")
    code, out, err = run(tmp_path, *options, script)
    assert (code, out.splitlines()) == (0, shown), err


def test_core_a_program_finds_the_variables_that_torchrun_sets(tmp_path: Path) -> None:
    names = (
        "RANK LOCAL_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE ROLE_WORLD_SIZE GROUP_RANK "
        "GROUP_WORLD_SIZE ROLE_NAME TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT "
        "TORCHELASTIC_MAX_RESTARTS MASTER_ADDR OMP_NUM_THREADS"
    )
    script = program(
        tmp_path,
        f"import os\nassert int(os.environ['MASTER_PORT']) > 0\n"
        f"print(*(os.environ[n] for n in '{names}'.split()))",
    )
    options = ("--rdzv-backend=c10d", "--rdzv_endpoint=localhost:0", "--rdzv-id=x1", "--standalone")
    code, out, err = run(tmp_path, "--nproc-per-node=2", *options, script)
    assert code == 0, err
    assert sorted(line.partition(":")[2] for line in out.splitlines()) == [
        f"{rank} {rank} {rank} 2 2 2 0 1 default x1 0 3 127.0.0.1 1" for rank in (0, 1)
    ]
    assert "--rdzv-backend: without effect, since the job's own scheduler is where" in err
    assert "--rdzv-endpoint: without effect on one host" in err


def test_core_a_module_and_a_program_that_is_not_python(tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text("import sys\nprint('module', *sys.argv[1:])")
    code, out, err = run(tmp_path, "-m", "mod", "--flag", "-r")
    assert (code, out) == (0, "module --flag -r\n"), err
    code, out, err = run(tmp_path, "--no-python", "sh", "-c", "echo shell $RANK")
    assert (code, out) == (0, "shell 0\n"), err


# Rank 1 dies once; nobody has joined the job, so all begin again.
DIES_ONCE = """
import os, signal, sys, time
count = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("restart", count, flush=True)
if count in "{rounds}":
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep({patience})
print("done")
"""


def test_core_all_start_again_where_nothing_is_kept(tmp_path: Path) -> None:
    script = program(tmp_path, DIES_ONCE.format(rounds="01", patience=LIMIT_S))
    code, out, err = run(tmp_path, "--nproc-per-node=2", script)
    assert code == 0, out + err
    for rank in (0, 1):
        mine = [s.partition(":")[2] for s in out.splitlines() if f"default{rank}" in s]
        assert mine[-2:] == ["restart 2", "done"]
    said = [line for line in err.splitlines() if "nothing is kept" in line]
    assert [line.rpartition(": ")[2] for line in said] == ["restart 1 of 3", "restart 2 of 3"]
    assert "interrupted" not in err
    assert "done" in (tmp_path / "log" / "restart_2" / "worker_0.log").read_text()


def test_core_that_spares_are_of_no_use_where_nothing_is_kept_is_said_once(tmp_path: Path) -> None:
    script = program(tmp_path, DIES_ONCE.format(rounds="01", patience=LIMIT_S))
    code, out, err = run(tmp_path, "--nproc-per-node=2", "--spares=1", script)
    assert code == 0, out + err
    assert "Traceback" not in out + err  # Unless a spare waits, it fails to read RANK.
    assert err.count("all 2 processes are started again") == 2
    said = [line for line in err.splitlines() if "of no use" in line]
    assert len(said) == 1 and said[0].startswith("holdfast: --spares 1 is of no use"), err


# What one of Gloo's threads does to a process at times, as Python ends.
ABORTS = """
import os, sys
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    print("{last}", file=sys.stderr, flush=True)
    os.abort()
"""


@pytest.mark.parametrize("last", ["terminate called without an active exception", "no"])
def test_core_a_process_that_gloo_aborts_is_told_from_others(tmp_path: Path, last: str) -> None:
    script = program(tmp_path, ABORTS.format(last=last))
    code, out, err = run(tmp_path, "--nproc-per-node=2", script)
    assert code == 0, out + err
    assert "rank 1 was killed by signal 6 (SIGABRT) and nothing is kept" in err
    assert ("rank 1's program may have been at its end" in err) == (last != "no"), err


@pytest.mark.parametrize("allowed", [0, 1])
def test_core_starting_all_again_is_bounded(tmp_path: Path, allowed: int) -> None:
    script = program(tmp_path, "raise SystemExit(7)")
    code, _, err = run(tmp_path, "--nproc-per-node=2", f"--max-restarts={allowed}", script)
    assert code == (1 if allowed else 7), err
    assert ("all were started again once, " in err) == bool(allowed)
    assert "--max-restarts" in err


WAITS = f"""
import os, time
path = "pid-" + os.environ["RANK"]
open(path + ".new", "w").write(str(os.getpid()))
os.replace(path + ".new", path)
time.sleep({LIMIT_S})
"""


def pids(folder: Path, count: int) -> list[int]:
    """Wait until `count` ranks of WAITS run; return their process ids."""
    deadline = time.monotonic() + LIMIT_S
    while len(found := list(folder.glob("pid-?"))) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    return [int(path.read_text()) for path in found]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_core_a_signal_ends_all_and_leaves_no_trace_of_the_launcher(
    tmp_path: Path, number: signal.Signals
) -> None:
    with start(tmp_path, "--nproc-per-node=2", program(tmp_path, WAITS)) as process:
        workers = pids(tmp_path, 2)
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + number
    assert "Traceback" not in out + err
    assert len(workers) == 2 and not any(map(alive, workers))


def test_core_where_the_launcher_is_killed_the_job_ends_too(tmp_path: Path) -> None:
    with start(tmp_path, "--nproc-per-node=2", program(tmp_path, WAITS)) as process:
        workers = pids(tmp_path, 2)
        assert len(workers) == 2
        process.kill()
    deadline = time.monotonic() + LIMIT_S / 2
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, workers))


SPARE = """
import ctypes, sys
from types import SimpleNamespace
from holdfast import _spare

def none(_: int) -> int:
    print("WAITS", flush=True)
    return -1

_spare.ctypes = SimpleNamespace(CDLL=lambda *_, **__: SimpleNamespace(
    inotify_init1=none, inotify_add_watch=lambda *_: -1), c_uint32=int)
_spare.main("TOKEN", ["/bin/echo", "RAN"])
"""


def test_core_a_spare_looks_by_itself_where_the_user_may_have_no_more_inotify(
    tmp_path: Path,
) -> None:
    reading, writing = os.pipe()
    names = {"HOLDFAST_LIFELINE": f"{tmp_path}/lifeline-1", "HOLDFAST_SPARE_FD": str(reading)}
    with subprocess.Popen(
        [sys.executable, "-c", SPARE],
        env={**os.environ, **names},
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[reading],
    ) as spare:
        assert spare.stdout is not None
        assert spare.stdout.readline() == "WAITS\n"
        (tmp_path / "joined").touch()
        assert spare.stdout.read() == "RAN\n"
    for end in (reading, writing):
        os.close(end)
    assert spare.returncode == 0


def test_core_the_logs_of_a_job_that_runs_are_left_alone(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    script = program(
        tmp_path,
        "import pathlib, sys, time\nprint('of the first', flush=True)\n"
        f"while not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.01)\nprint('to its end')",
    )
    with start(tmp_path, script) as first:
        assert first.stdout is not None
        assert "of the first" in first.stdout.readline()
        code, out, err = run(tmp_path, script)
        assert code == 2
        assert "which still runs, writes its logs" in err, err
        assert out == ""
        go_on.touch()
        first.communicate(timeout=LIMIT_S)
    assert first.returncode == 0
    assert (tmp_path / "log" / "worker_0.log").read_text() == "of the first\nto its end\n"


ORPHAN = """
import os, time
read, write = os.pipe()
child = os.fork()
if child == 0:
    if os.fork() == 0:
        os.write(write, str(os.getpid()).encode())
    os._exit(0)
os.waitpid(child, 0)
orphan = os.read(read, 16).decode()
end = time.monotonic() + 60
while os.path.exists(f"/proc/{orphan}") and time.monotonic() < end:
    time.sleep(0.01)
print("gone" if not os.path.exists(f"/proc/{orphan}") else open(f"/proc/{orphan}/status").read())
"""


def test_core_as_a_containers_first_process_it_reaps_what_lost_its_parent(tmp_path: Path) -> None:
    become = "import ctypes\nctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER\n"
    code = f"{become}from holdfast.cli import main\nraise SystemExit(main())"
    words = ("run", "--log-dir=log", program(tmp_path, ORPHAN))
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "gone\n"), (done.stdout, done.stderr)

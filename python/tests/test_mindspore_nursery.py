"""Processes that the nursery forks behave as if they had been started by themselves."""
# With --ci: processes that outlive what they must not.

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from mindspore_job import NEEDS_MINDSPORE, Job, until

from holdfast.mindspore import _launch

RANK = """
import importlib.util, os, sys, numpy as np
assert importlib.util.find_spec("mindspore")  # To ask changes nothing.
import mindspore as ms
from mindspore.communication import init, get_rank
init()
{more}
drawn = f"{{np.random.rand()}}/{{ms.ops.rand(1)[0]}}/{{ms.initial_seed()}}"
words = os.getpid(), os.getcwd(), sys.argv[1:], drawn
print("RANK", get_rank(), "of", *words, flush=True)
{end}
"""
LINE = re.compile(r"^RANK (\d) of (\d+) (\S+) (\[.*\]) (\S+)$", re.M)


@contextlib.contextmanager
def running(
    folder: Path, more: str = "", end: str = "", join: bool = True, **variables: str
) -> Iterator[Job]:
    (folder / "rank.py").write_text(RANK.format(more=more, end=end))
    options = ("--max_restarts=1",)
    run = Job(folder, folder, ["rank.py", "a b"], options=options, variables=variables, join=join)
    try:
        yield run
    finally:
        run.stop()


def was_forked(pid: str) -> bool:
    """Return whether a process has the nursery's command line."""
    return b"_nursery" in Path(f"/proc/{pid}/cmdline").read_bytes()


@NEEDS_MINDSPORE
@pytest.mark.parametrize("nursery", ["1", "0"])
def test_mindspore_processes_are_as_if_started_by_themselves(tmp_path: Path, nursery: str) -> None:
    with running(tmp_path, end="input()", HOLDFAST_NURSERY=nursery) as run:
        run.end(code=None)
        found = LINE.findall(run.logs())
        assert {rank for rank, *_ in found} == {"0", "1"}
        for _, _, folder, arguments, _ in found:
            assert (folder, arguments) == (str(tmp_path), "['a b']")
        arrays, kernels, seeds = zip(*(drawn.split("/") for *_, drawn in found))
        for own in (arrays, kernels):  # No two processes draw the same.
            assert len(set(own)) == len(found), own
        assert set(seeds) == {"0"}  # MindSpore's generator begins with seed 0 everywhere.
        # Standard input is empty. Python's traceback about that does not show the nursery.
        log = (tmp_path / "logs" / "worker_0.log").read_text()
        assert "EOFError" in log and "_nestling" not in log, log
        assert "exited with code 1" in (tmp_path / "logs" / "scheduler.log").read_text()


@NEEDS_MINDSPORE
def test_mindspore_a_replacement_is_forked_too(tmp_path: Path) -> None:
    """A successor's environment has more variables than that of its predecessor."""
    with running(tmp_path, end="import time; time.sleep(600)") as run:
        assert until(lambda: len(LINE.findall(run.logs())) == 2), run.logs()
        os.kill(int(LINE.findall(run.logs())[1][1]), signal.SIGKILL)
        assert until(lambda: len(LINE.findall(run.logs())) == 3), run.logs()
        newest = max((pid for _, pid, *_ in LINE.findall(run.logs())), key=int)
        assert was_forked(newest), run.logs()


@NEEDS_MINDSPORE
def test_mindspore_a_killed_agent_or_nursery_leaves_nothing_behind(tmp_path: Path) -> None:
    for victim in ("agent", "nursery", "stopped"):
        folder = tmp_path / victim
        folder.mkdir()
        # With 2 threads, OpenBLAS has a thread of its own when the import ends.
        with running(folder, end="import time; time.sleep(600)", OMP_NUM_THREADS="2") as run:
            assert until(lambda: len(LINE.findall(run.logs())) == 2), run.logs()
            workers = [pid for _, pid, *_ in LINE.findall(run.logs())]
            assert all(map(was_forked, workers))
            nursery = Path(f"/proc/{workers[0]}/stat").read_text().rsplit(")", 1)[1].split()[1]
            if victim == "stopped":  # It can not see the end of its job.
                os.kill(int(nursery), signal.SIGSTOP)
                run.process.terminate()
            else:
                os.kill(run.process.pid if victim == "agent" else int(nursery), signal.SIGKILL)
            if victim == "nursery":  # The job goes on; a successor starts another nursery.
                assert until(lambda of=nursery: not Path(f"/proc/{of}").exists(), 30), nursery
                os.kill(int(workers[1]), signal.SIGKILL)
                assert until(lambda: len(LINE.findall(run.logs())) >= 3), run.logs()
                newest = max((pid for _, pid, *_ in LINE.findall(run.logs())), key=int)
                assert was_forked(newest)
                run.process.terminate()
            run.process.wait(60)
            for pid in (*workers, nursery):
                assert until(lambda of=pid: not Path(f"/proc/{of}").exists(), 30), pid
            if victim == "agent":  # `holdfast clean` removes the files of this job.
                for file in Path(f"/dev/shm/holdfast-{os.geteuid()}").glob("*/agent-*.json"):
                    if str(folder) in file.read_text():
                        shutil.rmtree(file.parent)


@NEEDS_MINDSPORE
def test_mindspore_a_job_in_the_background_is_forked_too(tmp_path: Path) -> None:
    end = "import time; time.sleep(600)"
    with running(tmp_path, end=end, join=False) as run:
        agent = int(re.findall(r"in the background as process (\d+)", run.end())[0])
        try:
            assert until(lambda: len(LINE.findall(run.logs())) == 2), run.logs()
            pids = [pid for _, pid, *_ in LINE.findall(run.logs())]
            assert all(map(was_forked, pids))
        finally:
            os.kill(agent, signal.SIGTERM)
        for pid in (agent, *pids):
            assert until(lambda of=pid: not Path(f"/proc/{of}").exists(), 60), pid


@NEEDS_MINDSPORE
def test_mindspore_variables_that_a_program_sets_before_the_import_count(tmp_path: Path) -> None:
    (tmp_path / "before.py").write_text("import os\nos.environ['GLOG_v'] = '2'\n")
    script = "import before\nimport mindspore\nimport os\nprint('RAN', os.getpid(), flush=True)\n"
    (tmp_path / "rank.py").write_text(script)
    run = Job(tmp_path, tmp_path, ["rank.py"])
    try:
        run.end(code=None)
        log = (tmp_path / "logs" / "worker_0.log").read_text()
        assert "the program sets GLOG_v before it imports MindSpore" in log, log
        assert "RAN" in log
    finally:
        run.stop()


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("import mindspore as ms", True),
        ("import os\nif True:\n    from mindspore.nn import Dense", True),
        ("import torch\nprint('mindspore')", False),
        ("import mindspore_lite", False),
    ],
)
def test_mindspore_scripts_that_do_not_import_it_are_not_forked(
    tmp_path: Path, text: str, fits: bool
) -> None:
    (tmp_path / "x.py").write_text(text)
    assert _launch.fits_nursery(tmp_path / "x.py") is fits
    assert not _launch.fits_nursery(tmp_path / "no.py")

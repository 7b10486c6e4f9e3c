"""How a job ends that can not go on: which faults are retried, and what the user is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_core_run import program, run

# Rank 1 does something before it joins, or in its seventh step, and notes how often it came there.
TRAINS = """
import contextlib, os, signal, sys, time
from pathlib import Path
import holdfast

def meet(where):
    if where == {where!r} and os.environ["RANK"] == "1":
        with open("starts", "a") as starts:
            starts.write("x")
        count = len(Path("starts").read_text())
        {what}

meet("before init")
if {where!r} == "before init":
    time.sleep(600)  # Nobody joins the job.
job = holdfast.init()
meet("before its session")
with job.open(private_bytes=8) as session:
    session.join()
    while session.version < 10:
        session.begin_step()
        if session.version == 6:
            meet("in step 7")
        with contextlib.suppress(holdfast.MarkedError):  # The other rank failed: it is void.
            session.world.barrier()
        session.end_step(holdfast.Step())
"""


def trains(folder: Path, where: str, what: str) -> str:
    return program(folder, TRAINS.format(where=where, what=what))


@pytest.mark.parametrize(
    ("where", "when"),
    [("before its session", "before its first step"), ("in step 7", "after step 6")],
)
@pytest.mark.parametrize("spares", ["0", "all"])
def test_core_the_same_exception_at_the_same_step_ends_the_job_at_the_second_time(
    tmp_path: Path, where: str, when: str, spares: str
) -> None:
    script = trains(tmp_path, where, "raise ValueError('no data')")
    code, out, err = run(tmp_path, "--nproc-per-node=2", f"--spares={spares}", script)
    assert code == 1, out + err
    if spares == "0":  # A spare comes there as well, before it joins.
        assert (tmp_path / "starts").read_text() == "xx"
    assert (
        f"the job has failed: worker 1 exited with code 1 twice {when} with the same exception: "
        "ValueError: no data"
    ) in err
    assert "holdfast: worker 1 exited with code 1 (ValueError: no data)" in err


def test_core_what_holdfast_refuses_ends_the_job_at_the_first_time(tmp_path: Path) -> None:
    script = trains(tmp_path, "in step 7", "raise holdfast.UserError('not so')")
    code, out, err = run(tmp_path, "--nproc-per-node=2", script)
    assert code == 1, out + err
    assert (tmp_path / "starts").read_text() == "x"
    assert "failed: worker 1 exited with code 1 (holdfast._errors.UserError: not so)" in err


def test_core_where_nothing_is_kept_the_same_exception_ends_the_second_start_of_all(
    tmp_path: Path,
) -> None:
    for spares in ("0", "1"):
        (tmp_path / "starts").unlink(missing_ok=True)
        script = trains(tmp_path, "before init", "import not_there")
        code, out, err = run(tmp_path, "--nproc-per-node=2", f"--spares={spares}", script)
        assert code == 1, out + err
        assert (tmp_path / "starts").read_text() == "xx"
        missing = "ModuleNotFoundError: No module named 'not_there'"
        assert f"rank 1 exited with code 1 ({missing}) and nothing is kept" in err
        assert "the last start of all ended with the same exception, so none is started" in err


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (
            "count < 4 and os.kill(os.getpid(), signal.SIGKILL)",
            "worker 1 was killed by signal 9 (SIGKILL)",
        ),
        ("count < 4 and sys.exit(3)", "worker 1 exited with code 3"),
        (
            "if count < 4: raise OSError('try ' + str(count))",
            "worker 1 exited with code 1 (OSError: try 3)",
        ),
    ],
)
def test_core_other_faults_at_one_step_are_recovered_from_up_to_the_limit(
    tmp_path: Path, what: str, said: str
) -> None:
    code, out, err = run(
        tmp_path, "--nproc-per-node=2", "--max-restarts=3", trains(tmp_path, "in step 7", what)
    )
    assert code == 0, out + err
    assert said in err
    assert (tmp_path / "starts").read_text() == "xxxx"


def test_core_errors_name_the_options_of_the_command_that_was_used(tmp_path: Path) -> None:
    script = trains(tmp_path, "in step 7", "sys.exit(3)")
    code, _, err = run(tmp_path, "--nproc-per-node=2", "--max-restarts=1", script)
    assert code == 3 and "without a step made in between (--max-restarts=1)" in err, err
    code, _, err = run(tmp_path, "--nproc-per-node=20000", script)
    assert code == 2 and "--nproc-per-node" in err and "worker_num" not in err

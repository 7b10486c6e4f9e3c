"""`--spares all`: one spare for each rank, which knows its rank from its start."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from test_core_job import job

# The trainer. A spare first notes what it knows.
PROGRAM = """
import os, runpy, sys
from pathlib import Path
import holdfast

TRAINER = {trainer!r}
joined = holdfast.init()
if joined.waits_spare:
    known = [os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MS_NODE_ID")]
    out = Path(sys.argv[sys.argv.index("--out") + 1])
    name = out / f"spare-{{joined.bound_rank}}-{{os.getpid()}}"
    name.with_suffix(".new").write_text(" ".join(known))
    name.with_suffix(".new").replace(name)
else:
    assert joined.bound_rank is None
runpy.run_path(TRAINER, run_name="__main__")
"""


def spares_of(folder: Path, rank: int) -> list[Path]:
    return [p for p in folder.glob(f"spare-{rank}-*") if not p.suffix]


@pytest.mark.kill
def test_core_a_bound_spare_knows_its_rank_and_takes_it_over(tmp_path: Path) -> None:
    trainer = str(Path(__file__).with_name("trainer_core.py"))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(trainer=trainer))
    shape = ("--steps", "500", "--pause", "0.01")
    with job(tmp_path / "calm", *shape, workers=3, program=program) as calm:
        expected = calm.results()
    folder = tmp_path / "killed"
    with job(folder, *shape, workers=3, program=program, options=("--spares", "all")) as running:
        for kills, rank in enumerate((2, 0, 2)):
            running.until(
                lambda rank=rank, n=kills: int(len(spares_of(folder, rank)) >= 1 + n // 2)
            )
            running.until(lambda goal=30 * (kills + 1): int(running.step() >= goal))
            killed = running.until(lambda rank=rank: running.pid(rank))
            os.kill(killed, signal.SIGKILL)
            taker = running.until(
                lambda rank=rank, killed=killed: (
                    pid if (pid := running.pid(rank)) not in (None, killed) else None
                )
            )
            assert f"spare-{rank}-{taker}" in {p.name for p in spares_of(folder, rank)}
        assert running.results() == expected
    for rank in range(3):
        for told in spares_of(folder, rank):
            assert told.read_text() == f"{rank} {rank} 3 {rank}"
    assert len(spares_of(folder, 1)) == 1


def test_core_what_spares_may_be_is_said(tmp_path: Path) -> None:
    with job(tmp_path / "job", options=("--spares", "each")) as running:
        output, _ = running.process.communicate(timeout=60)
    assert running.process.returncode == 2
    assert "--spares is 'each'; allowed is a whole number from 0, or 'all'" in output

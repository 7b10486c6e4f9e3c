#!/usr/bin/env python3
"""Processes that die between two loops, before the first and after the last: the same bits; and ranks that drift
apart: told so. loops_test.py --bin DIR

The program (two_loops.cc) ends itself where the test says, so that nothing depends on when.
"""
import argparse
import re
import shutil
import signal
import sys
import tempfile
import unittest
from pathlib import Path

from job import Job, processes_of

arguments = argparse.Namespace()
WORKERS = 2


class Loops(unittest.TestCase):
    undisturbed = {}  # By the norm that gradients are clipped to.

    def run_with(self, *deaths, spares=0, clip=0):
        """Runs with these deaths; returns the saved file, and what each rank prints last and between the loops."""
        folder = Path(tempfile.mkdtemp(prefix="holdfast-test-"))
        self.addCleanup(shutil.rmtree, folder)
        program = [arguments.bin / "two_loops", "--save", folder / "final", "--clip", clip]
        for death in deaths:
            program += ["--die", death]
        with Job(arguments.bin, folder, program, WORKERS, spares) as job:
            self.assertEqual(job.wait(), 0, job.text())
        self.assertEqual(processes_of(job.name), [])
        self.assertEqual(job.leftovers(), [])
        said = "".join(log.read_text() for log in sorted((folder / "log").glob("*.log")))
        ends = dict(re.findall(r"^rank (\d+): (sum .* after step 20)$", said, re.MULTILINE))
        self.assertEqual(sorted(ends), [str(rank) for rank in range(WORKERS)], said)
        seen = dict(re.findall(r"^rank (\d+): (seen .*) after step 12$", said, re.MULTILINE))
        killed = {x["process"] for x in job.trace.events("died") if x["exit_code"] == 128 + signal.SIGKILL}
        workers = {x["process"] for x in job.trace.events("spawn") if x["role"] == "worker"}
        self.assertEqual(len(killed & workers), len(deaths))  # Unneeded spares are killed as well, so count workers.
        return (folder / "final").read_bytes(), ends, seen

    def same_with(self, *deaths, spares=0, clip=0):
        if clip not in Loops.undisturbed:
            Loops.undisturbed[clip] = self.run_with(clip=clip)
        final, ends, seen = Loops.undisturbed[clip]
        now = self.run_with(*deaths, spares=spares, clip=clip)
        self.assertEqual(now[1], ends)
        self.assertEqual(now[2], seen)
        self.assertTrue(now[0] == final, "the saved files differ")

    def test_between_the_loops(self):
        for deaths in (["0:between"], ["1:between"], ["0:between", "1:between"]):
            for spares in (0, 1):
                with self.subTest(deaths=deaths, spares=spares):
                    self.same_with(*deaths, spares=spares)

    def test_before_the_first_and_after_the_last(self):
        for deaths in (["1:before"], ["0:before", "1:between"], ["0:after"], ["1:after", "0:between"]):
            with self.subTest(deaths=deaths):
                self.same_with(*deaths)

    def test_with_gradients_that_are_clipped(self):
        for deaths in (["1:8"], ["0:between", "1:16"]):
            with self.subTest(deaths=deaths):
                self.same_with(*deaths, clip=0.2)
        self.same_with()
        self.assertNotEqual(Loops.undisturbed[0][1], Loops.undisturbed[0.2][1])


class Drift(unittest.TestCase):
    """A rank alone changes a parameter."""

    def run_with(self, *options, drift, every=0, workers=WORKERS):
        folder = Path(tempfile.mkdtemp(prefix="holdfast-test-"))
        self.addCleanup(shutil.rmtree, folder)
        program = [arguments.bin / "two_loops", "--save", folder / "final", *options]
        env = {"HOLDFAST_DRIFT": drift, "HOLDFAST_DIGEST_EVERY": str(every)}
        with Job(arguments.bin, folder, program, workers, env=env) as job:
            code = job.wait()
        final = folder / "final"
        self.final = final.read_bytes() if final.exists() else None
        self.assertEqual(processes_of(job.name), [])
        self.assertEqual(job.leftovers(), [])
        return code, job.text() + "".join(log.read_text() for log in sorted((folder / "log").glob("*.log")))

    def test_is_named_at_the_end_of_the_loop(self):
        code, said = self.run_with("--drift", "1:5", drift="")
        self.assertNotEqual(code, 0)
        self.assertIn("rank 1 holds other values of `layers.0.weight` than rank 0 after step 12. Either the program", said)
        self.assertIn("HOLDFAST_DRIFT=warn", said)

    def test_is_named_when_a_process_was_replaced(self):
        code, said = self.run_with("--drift", "0:14", "--die", "1:15", drift="end")
        self.assertNotEqual(code, 0)
        self.assertIn("rank 1 holds other values of `layers.0.weight` than rank 0 after step 14. ", said)

    def test_is_named_once_where_it_shall_not_end_the_job(self):
        code, said = self.run_with("--drift", "1:5", drift="warn")
        self.assertEqual(code, 0, said)
        lines = [line for line in said.splitlines() if "holds other values" in line]
        self.assertEqual(len({line[line.index("rank 1"):] for line in lines}), 1, said)
        self.assertIn("than rank 0 after step 12. Either the program", lines[0])

    def test_one_rank_of_three_is_given_the_values_of_the_others(self):
        code, said = self.run_with(drift="", workers=3)
        self.assertEqual(code, 0, said)
        undisturbed = self.final
        code, said = self.run_with("--flip", "2:5", "--flip", "0:9", "--die", "1:10", drift="", every=1, workers=3)
        self.assertEqual(code, 0, said)
        for rank, than, step in ((2, 0, 5), (0, 1, 9)):
            found = f"rank {rank} holds other values of `layers.0.bias` than rank {than} after step {step}. "
            lines = [line for line in said.splitlines() if found in line and "It has been given the values that" in line]
            self.assertEqual(len(lines), 2, said)  # On the terminal, and in the scheduler's log.
            self.assertIn(f"Step {step}, and its sums on all ranks, may have been computed with wrong values", lines[0])
        self.assertTrue(self.final == undisturbed, "the saved files differ")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    arguments, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])

#!/usr/bin/env python3
"""What the chaos looks at and draws, without a job. chaos_test.py"""
import random
import tempfile
import unittest
from pathlib import Path

from checks import Violation, check_ends, ends_of
from scenario import OPTIMIZERS, WORKERS, draw

LINE = "rank {} of 2: done after step 60; state {:016x}\n"
TWO = {"workers": 2}


class Chaos(unittest.TestCase):
    def ends(self, **logs):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in logs.items():
                (Path(folder) / f"{name}.log").write_text("rank 0 of 2: epoch 1: loss 1.0\n" + text)
            return ends_of(Path(folder))

    def test_every_rank_must_end_as_in_the_undisturbed_run(self):
        whole = self.ends(worker_0=LINE.format(0, 5), worker_1=LINE.format(1, 6))
        check_ends(whole, TWO, whole)
        check_ends(self.ends(worker_0=LINE.format(0, 5), spare_0=LINE.format(1, 6)), TWO, whole)
        check_ends(self.ends(worker_0=LINE.format(0, 5), worker_1=LINE.format(1, 6) * 2), TWO, whole)
        for other in [self.ends(worker_0=LINE.format(0, 5), worker_1=LINE.format(1, 7)),  # Not rank 0's.
                      self.ends(worker_0=LINE.format(0, 5), worker_1=LINE.format(1, 6) + LINE.format(1, 7)),
                      self.ends(worker_0=LINE.format(0, 5))]:
            with self.assertRaisesRegex(Violation, "rank 1 "):
                check_ends(other, TWO, whole)
            with self.assertRaisesRegex(Violation, "undisturbed"):
                check_ends(whole, TWO, {0: whole[0]})

    def test_a_dozen_trials_draw_every_optimizer_and_world_size(self):
        drawn = [draw(random.Random(number), number) for number in range(12)]
        for optimizer in OPTIMIZERS:
            self.assertGreaterEqual([each["optimizer"] for each in drawn].count(optimizer), 2)
        for workers in set(WORKERS):
            self.assertGreaterEqual([each["workers"] for each in drawn].count(workers), 2)
        self.assertEqual(len({each["fault"] for each in drawn}), 9)

    def test_every_pair_of_optimizer_and_world_size_comes(self):
        drawn = [draw(random.Random(number), number) for number in range(144)]
        self.assertEqual(len({(each["optimizer"], each["workers"]) for each in drawn}), 12)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""mnist says in one sentence what is wrong with its data and settings, ends with an error, and leaves nothing.

mnist_test.py --bin build/release/bin --data build/digits
"""
import argparse
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "chaos"))
from job import Job, processes_of  # noqa: E402

arguments = argparse.Namespace()
IMAGES = "train-images-idx3-ubyte"
LABELS = "train-labels-idx1-ubyte"
HINT = "tools/make_digits"


class Alone(unittest.TestCase):
    """mnist without msrun: a single process."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.data = self.folder / "data"
        shutil.copytree(arguments.data, self.data)

    def fails(self, *options, says, code=1):
        """mnist ends at once with one line on the error, which has all the words in `says`."""
        done = subprocess.run([arguments.bin / "mnist", *map(str, options)], capture_output=True, text=True, timeout=60,
                              check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        said = [line for line in done.stderr.splitlines() if line.startswith("mnist: ")]
        self.assertEqual(len(said), 1, done.stderr)
        for words in says:
            self.assertIn(words, said[0])

    def fails_on_data(self, *says):
        self.fails("--data", self.data, "--steps", 1, says=says)

    def test_missing_folder(self):
        self.fails("--data", self.folder / "nowhere", says=[str(self.folder / "nowhere" / IMAGES), "is missing", HINT])

    def test_missing_file(self):
        (self.data / LABELS).unlink()
        self.fails_on_data(LABELS, "is missing", HINT)

    def test_truncated_images(self):
        with open(self.data / IMAGES, "r+b") as file:
            file.truncate((self.data / IMAGES).stat().st_size - 100)
        self.fails_on_data(IMAGES, "by its header", "make or fetch it again")

    def test_truncated_header(self):
        (self.data / LABELS).write_bytes(b"\0\0\x08")
        self.fails_on_data(LABELS, "is not in MNIST's format", HINT)

    def test_a_folder_and_a_pipe(self):
        (self.data / LABELS).unlink()
        (self.data / IMAGES).unlink()
        (self.data / LABELS).mkdir()
        os.mkfifo(self.data / IMAGES)
        self.fails_on_data(IMAGES, "is no file", HINT)
        (self.data / IMAGES).unlink()
        shutil.copy(arguments.data / IMAGES, self.data)
        self.fails_on_data(LABELS, "is no file", HINT)

    def test_empty_file(self):
        (self.data / IMAGES).write_bytes(b"")
        self.fails_on_data(IMAGES, "is not in MNIST's format", HINT)

    def test_another_kind_of_file(self):
        (self.data / IMAGES).write_bytes((self.data / LABELS).read_bytes())
        self.fails_on_data(IMAGES, "is not in MNIST's format", HINT)

    def test_labels_of_other_images(self):
        (self.data / LABELS).write_bytes(struct.pack(">II", 2049, 5) + bytes(5))
        self.fails_on_data("images but 5 labels")

    def test_a_label_that_is_no_digit(self):
        labels = bytearray((self.data / LABELS).read_bytes())
        labels[20] = 77
        (self.data / LABELS).write_bytes(labels)
        self.fails_on_data(LABELS, "77", "0 to 9")

    def test_fewer_samples_than_a_step_takes(self):
        self.fails("--data", self.data, "--batch", 100000, says=["100000", "1497"])

    def test_save_into_a_folder_that_is_not_there(self):
        """This is refused before the first step: after the last one it would be too late."""
        self.fails("--data", self.data, "--save", self.folder / "no" / "file", says=["--save", str(self.folder / "no")],
                   code=2)
        self.fails("--data", self.data, "--save", self.folder, says=["--save", "is a folder"], code=2)

    def test_help(self):
        for option in ("--help", "-h"):
            done = subprocess.run([arguments.bin / "mnist", option], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("usage: mnist --data DIR", done.stdout)

    def test_options(self):
        data = ["--data", self.data]
        for options, says in [
            ([], ["--data DIR is missing"]),
            (["--data"], ["--data wants a value"]),
            ([*data, "--nonsense", "1"], ["--nonsense"]),
            ([*data, "--steps", "ten"], ["--steps", "'ten'"]),
            ([*data, "--steps", "-1"], ["--steps", "'-1'"]),
            ([*data, "--batch", "0"], ["--batch", "at least 1"]),
            ([*data, "--batch", "1.5"], ["--batch", "'1.5'"]),
            ([*data, "--seed", "1e30"], ["--seed", "'1e30'"]),
            ([*data, "--seed", "18446744073709551616"], ["--seed", "'18446744073709551616'"]),
            ([*data, "--seed", ""], ["--seed", "''"]),
            ([*data, "--batch", "1", "--batch-norm"], ["--batch-norm", "at least 2"]),
            ([*data, "--save", ""], ["--save is ''", "a file"]),
            ([*data, "--save", "/proc/result"], ["--save", "/proc can not be written to"]),
            ([*data, "--optimizer", "adagrad"], ["--optimizer", "'adagrad'", "adamw"]),
            ([*data, "--model", "cnn"], ["--model", "'cnn'", "mlp"]),
            ([*data, "--clip", "-1"], ["--clip", "'-1'"]),
            ([*data, "--dropout", "1"], ["--dropout"]),
            ([*data, "--dropout", "nan"], ["--dropout", "'nan'"]),
        ]:
            with self.subTest(options=options):
                self.fails(*options, says=says, code=2)


class UnderMsrun(unittest.TestCase):
    """The job ends by itself and says the reason, and nothing of it is left."""

    def fails(self, options, says, program=None):
        folder = Path(tempfile.mkdtemp(prefix="holdfast-test-"))
        self.addCleanup(shutil.rmtree, folder)
        with Job(arguments.bin, folder, [program or arguments.bin / "mnist", *options], 2, max_restarts=1) as job:
            self.assertNotEqual(job.wait(60), 0)
            for words in says:
                self.assertIn(words, job.text())
            end = time.monotonic() + 10
            while processes_of(job.name) and time.monotonic() < end:
                time.sleep(0.05)
            self.assertEqual(processes_of(job.name), [])
            self.assertEqual(job.leftovers(), [])

    def test_missing_data(self):
        self.fails(["--data", "/nowhere"], ["/nowhere/" + IMAGES, "is missing", HINT])

    def test_ranks_that_do_not_train_alike(self):
        """A rank of other settings, data or model ends the job with one sentence that names it."""
        few = Path(tempfile.mkdtemp(prefix="holdfast-test-"))
        self.addCleanup(shutil.rmtree, few)
        shutil.copytree(arguments.data, few, dirs_exist_ok=True)
        for name, header, item in [(IMAGES, 16, 784), (LABELS, 8, 1)]:
            data = (few / name).read_bytes()
            count = int.from_bytes(data[4:8], "big") - 7
            (few / name).write_bytes(data[:4] + struct.pack(">I", count) + data[8:header] + data[header:header + count * item])
        common = f"{arguments.bin / 'mnist'} --steps 400 --model linear --data {arguments.data}"
        for options, says in [
            ("--batch 16", "the batch is 16 in rank 1 and 32 in rank 0"),
            ("--seed 8", "the shuffle_seed is 8 in rank 1 and 7 in rank 0"),
            ("--steps 399", "the max_steps is 399 in rank 1 and 400 in rank 0"),
            ("--clip 2", "the clip_norm is 2 in rank 1 and 0 in rank 0"),
            ("--epochs 11", "the number of epochs is 11 in rank 1 and 10 in rank 0"),
            (f"--data {few}", "samples in the data set is"),
            ("--model mlp", "its model or optimizer differs"),
            ("--optimizer adam", "its model or optimizer differs"),
        ]:
            with self.subTest(options=options):
                # MS_NODE_ID is the rank; the scheduler has none.
                script = f'if [ "${{MS_NODE_ID:-0}}" = 1 ]; then exec {common} {options}; else exec {common}; fi'
                self.fails(["-c", script], [says], program="/bin/sh")

    def test_wrong_setting(self):
        self.fails(["--data", arguments.data, "--optimizer", "adagrad"], ["--optimizer", "'adagrad'"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    arguments, rest = parser.parse_known_args()
    arguments.bin, arguments.data = arguments.bin.resolve(), arguments.data.resolve()
    unittest.main(argv=[sys.argv[0], *rest])

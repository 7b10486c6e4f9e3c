#!/usr/bin/env python3
"""make_digits says of digits what they are, and of a damaged file which it is.

tools/make_digits_test.py (needs no network: UCI's digits stand there already)
"""
import gzip
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parent / "make_digits"
NAMES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
MNIST_FIRST = [[5, 0, 4, 1, 9, 2, 1, 3, 1, 4], [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]]
UCI = "UCI handwritten digits (real): 1,497 to train, 300 to test, scaled from 8 x 8 to 28 x 28"


def put(folder, counts, first=([1, 2], [3, 4]), source=None):
    """Writes four files in MNIST's format, with black images."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, count in enumerate(counts):
        labels = bytes(first[i]) + bytes(count - len(first[i]))
        (folder / NAMES[2 * i]).write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + bytes(784 * count))
        (folder / NAMES[2 * i + 1]).write_bytes(struct.pack(">II", 2049, count) + labels)
    if source:
        (folder / "SOURCE").write_text(source + "\n")


class MakeDigits(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory(prefix="make-digits-")
        self.addCleanup(kept.cleanup)
        self.data, self.out = Path(kept.name) / "data", Path(kept.name) / "out"
        put(self.out, (1497, 300), source=UCI)  # So that nothing is fetched where DATA_PATH has nothing.

    def made(self, *options):
        environment = {**os.environ, "DATA_PATH": str(self.data)}
        return subprocess.run([sys.executable, TOOL, self.out, *options], env=environment, capture_output=True, text=True,
                              timeout=120, check=False)

    def source(self):
        done = self.made()
        self.assertEqual(done.returncode, 0, done.stderr)
        return (self.out / "SOURCE").read_text().strip()

    def fails(self, *says):
        done = self.made()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for words in says:
            self.assertIn(words, done.stderr)

    def test_mnist_wins_and_is_called_so(self):
        put(self.data / "FashionMNIST" / "raw", (60000, 10000), MNIST_FIRST)
        put(self.data / "a", (12, 6))
        put(self.data / "b", (60000, 10000), MNIST_FIRST)
        self.assertEqual(self.source(), "MNIST: 60,000 digits to train, 10,000 to test")
        self.assertEqual((self.out / NAMES[1]).read_bytes(), (self.data / "b" / NAMES[1]).read_bytes())
        self.assertIn("already", self.made().stdout)

    def test_other_digits_are_not_called_mnist(self):
        put(self.data, (1497, 300))
        self.assertEqual(self.source(), f"not MNIST but files in its format, from {self.data}: 1,497 to train, 300 to test")
        put(self.data, (60000, 10000))  # As many as MNIST, in a folder whose name tells nothing.
        self.assertTrue(self.source().startswith("not MNIST"))

    def test_fashion_and_alphabets_are_passed_over(self):
        for name in ["FashionMNIST", "KMNIST", "EMNIST"]:
            put(self.data / name / "raw", (60000, 10000))
        self.assertEqual(self.source(), UCI)

    def test_four_files_of_one_folder(self):
        put(self.data / "a", (12, 6))
        put(self.data / "b", (20, 10))
        (self.data / "a" / NAMES[3]).unlink()
        self.assertIn(f"{self.data / 'b'}: 20 to train, 10 to test", self.source())

    def test_packed(self):
        put(self.data, (12, 6))
        for name in NAMES:
            (self.data / (name + ".gz")).write_bytes(gzip.compress((self.data / name).read_bytes()))
            (self.data / name).unlink()
        self.assertIn("12 to train", self.source())
        cut = self.data / (NAMES[0] + ".gz")
        cut.write_bytes(cut.read_bytes()[:-9])
        self.fails(str(cut))

    def test_damage_is_named(self):
        for name, change, says in [
            (NAMES[0], lambda b: b[:-1], "damaged"), (NAMES[2], lambda b: b"\0" + b[:-1], "format"),
            (NAMES[1], lambda b: b[:5], "damaged"), (NAMES[0], lambda b: b[:8] + struct.pack(">II", 8, 98) + b[16:], "8 x 98"),
            (NAMES[3], lambda b: b[:-1] + b"\x1a", "label 26"),
            (NAMES[1], lambda b: struct.pack(">II", 2049, 3) + b[8:11], "3 labels"),
        ]:
            with self.subTest(file=name, says=says):
                put(self.data, (12, 6))
                (self.data / name).write_bytes(change((self.data / name).read_bytes()))
                self.fails(name, says)

    def test_is_done_again_when_the_source_differs_or_what_is_there_is_damaged(self):
        self.assertEqual(self.source(), UCI)
        put(self.data, (12, 6))
        self.assertIn("12 to train", self.source())
        put(self.data, (12, 6), ([7], [8]))  # Same folder and number, but other digits.
        self.source()
        self.assertEqual((self.out / NAMES[1]).read_bytes(), (self.data / NAMES[1]).read_bytes())
        with open(self.out / NAMES[0], "r+b") as file:
            file.truncate(100)
        self.source()
        self.assertEqual((self.out / NAMES[0]).read_bytes(), (self.data / NAMES[0]).read_bytes())

    def test_drawn_digits_look_at_no_data_path(self):
        put(self.data, (12, 6))
        self.assertEqual(self.made("--generate", "12").returncode, 0)
        self.assertEqual((self.out / "SOURCE").read_text(), "drawn digits, not handwriting: 12 to train, 2 to test\n")


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""What the demonstration says of a recovery is what the traces say. demo_test.py (starts no job)"""
import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent))
import demo  # noqa: E402

MS = 1_000_000
KILLED = 100 * MS


def said(detected_ns, replaced, waits_ns=0):
    """The paragraph on a recovery in which process 77 takes rank 2, from a trace with these lines."""
    lines = [{"event": "step", "rank": r, "step": 9, "generation": 1, "t_ns": 90 * MS} for r in range(4)]
    lines += [{"event": "died", "process": 4, "detected_ns": 101 * MS, "t_ns": 102 * MS}, {**replaced, "t_ns": 102 * MS},
              {"event": "fault", "detected_ns": detected_ns, "t_ns": 103 * MS}]
    lines += [{"event": "waiting", "pid": 77, "t_ns": waits_ns}] if waits_ns else []
    lines += [{"event": "stop", "t_ns": 104 * MS}, {"event": "plan", "t_ns": 105 * MS},
              {"event": "resume", "rank": -1, "pid": 1, "generation": 2, "version": 9, "t_ns": 106 * MS},
              {"event": "resume", "rank": 2, "pid": 77, "generation": 2, "version": 9, "t_ns": 106 * MS}]
    lines += [{"event": "step", "rank": r, "step": 10, "generation": 2, "t_ns": (110 + r) * MS} for r in range(4)]
    trace = SimpleNamespace(events=lambda name: [line for line in lines if line["event"] == name])
    with contextlib.redirect_stdout(io.StringIO()) as out:
        demo.describe(1, 2, 33, KILLED, SimpleNamespace(trace=trace))
    return out.getvalue()


class Demo(unittest.TestCase):
    def test_a_spare_that_the_agent_promoted(self):
        text = said(101 * MS, {"event": "promote", "child": 77}, waits_ns=99 * MS)
        self.assertIn("after step 9. Its agent told the scheduler, which knew 3.0 ms after the kill", text)
        self.assertIn("went on from step 9. A spare (77) took its place; all 4 ranks had made a new step at 13.0 ms", text)
        self.assertIn("Steps lost: 0.", text)

    def test_a_spare_that_did_not_wait_yet(self):
        text = said(101 * MS, {"event": "promote", "child": 77}, waits_ns=104 * MS)
        self.assertIn("A spare that was still starting (77) took its place", text)

    def test_a_new_process_and_a_scheduler_that_saw_it_by_itself(self):
        text = said(0, {"event": "spawn", "child": 77})
        self.assertIn("after step 9. The scheduler knew 3.0 ms after the kill", text)
        self.assertIn("A new process (77) took its place", text)

    def test_help_of_run_comes_at_once_and_names_the_options_that_there_are(self):
        run = Path(__file__).resolve().parent.parent / "run"
        with tempfile.TemporaryDirectory() as folder:  # With neither an installer nor cmake.
            (Path(folder) / "cat").symlink_to("/bin/cat")
            (Path(folder) / "dirname").symlink_to("/usr/bin/dirname")
            for option in ("--help", "-h"):
                done = subprocess.run(["/bin/bash", run, "--spares", "1", option], env={"PATH": folder},
                                      capture_output=True, text=True, timeout=20, check=True)
                self.assertEqual(done.stderr, "")
                self.assertIn("--epochs N", done.stdout)
                self.assertIn("--spares K", done.stdout)

    def test_counts_the_digits_that_there_are(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\1\0\0\xea\x60" + bytes(60000))
            self.assertEqual(demo.digits_in(Path(folder)), 60000)


    def test_one_who_is_ended_takes_the_job_and_its_folder_along(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\1\0\0\xea\x60")
            (folder / "msrun").write_text(f"#!/bin/sh\necho $$ > {folder}/pid\nexec sleep 1000\n")
            (folder / "msrun").chmod(0o755)
            (folder / "tmp").mkdir()
            words = [sys.executable, demo.__file__, "--bin", name, "--data", name]
            with subprocess.Popen(words, env={**os.environ, "TMPDIR": f"{name}/tmp"}, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) as run:
                while not (folder / "pid").exists() or not (folder / "pid").read_text().strip():
                    self.assertIsNone(run.poll())
                run.send_signal(signal.SIGTERM)
                self.assertEqual(run.wait(60), 128 + signal.SIGTERM)
            self.assertFalse(Path("/proc", (folder / "pid").read_text().strip()).exists())
            self.assertEqual(list((folder / "tmp").iterdir()), [])


if __name__ == "__main__":
    unittest.main()

"""Command lines of torchrun (torchrun_lines.txt), under torchrun and under `holdfast run`."""
# With --ci: forty jobs, each of them twice.

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch_job import HERE, LIMIT_S, needs_torch

pytestmark = needs_torch

# A line of several ranks is whole only if it is written at once.
PROGRAMS = {
    "show.py": """
import os, sys
names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK ROLE_NAME"
words = [*(os.environ[name] for name in names.split()), *sys.argv[1:]]
sys.stdout.write("say: out " + " ".join(words) + "\\n")
sys.stderr.write("say: err " + os.environ["RANK"] + "\\n")
""",
    "gloo.py": """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
all = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(all)
words = [str(dist.get_rank()), str(all.item()), *sys.argv[1:]]
sys.stdout.write("say: sum " + " ".join(words) + "\\n")
dist.destroy_process_group()
""",
    "recovers.py": """
import os, sys
count = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("say: restart", count, *sys.argv[1:], flush=True)
sys.exit(5 if count == "0" else 0)
""",
    "fails.py": """
import os, sys, time
sys.stdout.write("say: rank " + os.environ["RANK"] + "\\n")
if os.environ["RANK"] == "1":
    while not os.path.exists("printed"):
        pass
    sys.exit(3)
open("printed", "w")
time.sleep(600)
""",
}
# torchrun of one process that has imported torch already: its import takes 3 s.
WARM = """
import json, os, sys
from torch.distributed.run import main
for commands in json.load(sys.stdin):
    pids = []
    for folder, environment, words in commands:
        if (pid := os.fork()) == 0:
            os.chdir(folder)
            os.environ.update(environment)
            to = os.open("torchrun.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(to, 1), os.dup2(to, 2)
            code = 1
            try:
                main(words)
                code = 0
            except SystemExit as end:
                code = end.code
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stdout.flush(), sys.stderr.flush()
                os._exit(code or 0)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    print(json.dumps(codes), flush=True)
"""


@dataclass
class Line:
    """One line of the file."""

    source: str
    environment: dict[str, str]
    words: list[str]
    differs: str

    @property
    def hosts(self) -> int:
        return 2 if any("$NODE" in word for word in self.words) else 1

    def words_of(self, host: int, port: int) -> list[str]:
        return [word.replace("PORT", str(port)).replace("$NODE", str(host)) for word in self.words]


def lines() -> list[Line]:
    found = []
    for text in (HERE / "torchrun_lines.txt").read_text().splitlines():
        if text.startswith("#"):
            continue
        source, line, differs = (*text.split(" | "), "")[:3]
        words = shlex.split(line)
        begin = next(i for i, word in enumerate(words) if word in ("torchrun", "python"))
        past = begin + (1 if words[begin] == "torchrun" else 3)
        environment = dict(word.split("=", 1) for word in words[:begin])
        found.append(Line(source, environment, words[past:], differs))
    return found


LINES = lines()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def folders(base: Path, number: int, hosts: int) -> list[Path]:
    made = [base / f"{number}-{host}" for host in range(hosts)]
    for folder in made:
        folder.mkdir(parents=True)
        for name, text in PROGRAMS.items():
            (folder / name).write_text(text)
    return made


def said(text: str) -> list[str]:
    """Return what the program has said, without what launchers put before it, or say again."""
    text = text.partition("holdfast: the last lines of ")[0]
    return sorted(re.sub(r"^\[[a-z]*\d+\]:", "", s) for s in text.splitlines() if "say: " in s)


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What torchrun makes of each line: what the programs have said, and the exit codes."""
    base = tmp_path_factory.mktemp("torchrun")
    places = [folders(base, number, line.hosts) for number, line in enumerate(LINES)]
    commands = []
    for line, folder in zip(LINES, places):
        port = free_port()
        commands.append(
            [
                (str(folder[host]), line.environment, line.words_of(host, port))
                for host in range(line.hosts)
            ]
        )
    done = subprocess.run(
        [sys.executable, "-c", WARM],
        input=json.dumps(commands),
        stdout=subprocess.PIPE,
        text=True,
        timeout=2 * LIMIT_S,
        check=True,
    )
    codes = [json.loads(text) for text in done.stdout.splitlines()]
    texts = [[(f / "torchrun.out").read_text() for f in folder] for folder in places]
    return [([said(text) for text in each], code) for each, code in zip(texts, codes, strict=True)]


def test_torch_there_are_forty_lines() -> None:
    assert len(LINES) >= 40


@pytest.mark.parametrize("number", range(len(LINES)), ids=[line.source for line in LINES])
def test_torch_a_line_for_torchrun_does_the_same_here(
    number: int, tmp_path: Path, torchrun: list[Any]
) -> None:
    line, port = LINES[number], free_port()
    (tmp_path / "token").write_text("a token of forty lines\n")
    (tmp_path / "token").chmod(0o600)
    own = {"HOLDFAST_TOKEN_FILE": str(tmp_path / "token")} if line.hosts > 1 else {}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "holdfast.run", *line.words_of(host, port)],
            cwd=folder,
            env={**os.environ, **line.environment, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for host, folder in enumerate(folders(tmp_path, number, line.hosts))
    ]
    try:
        texts = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    there, codes_there = torchrun[number]
    assert [said(text) for text in texts] == there, "\n".join(texts)
    assert (codes == codes_there) == (not line.differs), (codes, codes_there, texts)
    if line.differs:
        assert f" {codes[0]}" in line.differs and codes_there == [1]

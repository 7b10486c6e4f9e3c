"""The code blocks of the five documents of MindSpore, taken out as they are."""

from __future__ import annotations

import os
import re
from pathlib import Path

_HERE = Path(__file__).resolve()


def folder() -> Path | None:
    """Return where the documents are: HOLDFAST_SEEDS, or ../shared/seeds beside the repository."""
    given = os.environ.get("HOLDFAST_SEEDS")
    found = Path(given) if given else _HERE.parents[2].parent / "shared" / "seeds"
    return found if list(found.glob("000_*.txt")) else None


def text(number: str) -> str:
    found = folder()
    assert found is not None
    (path,) = found.glob(f"{number}_*.txt")
    return path.read_text(encoding="utf-8")


def blocks(number: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text(number), re.S)


def disaster_recovery() -> tuple[str, str, str]:
    """Return the training part of train.py, run.sh and recover.sh."""
    (train,) = blocks("000", "python")
    run, recover = (b for b in blocks("000", "bash") if "MS_ENABLE_RECOVERY" in b)
    return train, run, recover


def dynamic_networking() -> tuple[str, str, str, str]:
    """Return the program's imports and its main block, run_gpu_cluster.sh, the recovery lines."""
    program = blocks("001", "python")[0]
    head, block = program.split('if __name__ == "__main__":\n')
    script = next(b for b in blocks("001", "bash") if "for((i=0;i<8" in b)
    recovery = next(b for b in blocks("001", "bash") if b.startswith("export MS_ENABLE_RECOVERY=1"))
    return head, block.replace("    ...\n", ""), script, recovery


def dying_gasp() -> tuple[str, str, str]:
    """Return mindio_ttp_case.py, msrun.sh and msrun-resume.sh."""
    first, again = (b for b in blocks("003", "bash") if "msrun " in b)
    return "\n".join(blocks("003", "python")), first, again


def uce() -> tuple[str, str]:
    """Return UCE_case.py of the marked-up document and its shell lines."""
    (shell,) = (b for b in blocks("004", "bash") if "msrun " in b)
    return "\n".join(blocks("004", "python")), shell


def uce_plain() -> tuple[str, str]:
    """Return the same as uce(), from the document without markup."""
    whole = text("002")
    code = whole[whole.index("import os\nimport math") : whole.index("\nCallback\n")]
    rest = whole[whole.index("\nCallback\n") :]
    found = re.search(r"time_monitor = train.*?model\.train\([^\n]*\n", rest, re.S)
    assert found is not None
    shell = whole[whole.index("export MS_ENABLE_TFT='{UCE:1 TTP:1}'") :]
    return f"{code}\n{found.group(0)}", shell

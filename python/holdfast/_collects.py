"""Run `pytest -s train.py` of MindSpore's documents: pytest trains while it looks for tests.

pytest runs the script to find tests in it, finds none, and ends with exit code 5. The training
would then seem to have failed. The arguments after `-m holdfast._collects` go to pytest.
"""

from __future__ import annotations

import os
import sys
from typing import Final, NoReturn

_NO_TESTS: Final = 5  # pytest.ExitCode.NO_TESTS_COLLECTED


def main(words: list[str]) -> NoReturn:
    """Run pytest. If a script without tests ran to its end, report success."""
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        import holdfast

        holdfast.init()  # Serves the job and exits in here.
    import pytest

    code = int(pytest.main(words))
    if code == _NO_TESTS and "mindspore" in sys.modules:
        if os.environ.get("MS_NODE_ID", "0") == "0":
            print(
                "holdfast: pytest has found no test in this program, and has run it once to look "
                "for some: that was the training, and it has ended well"
            )
        code = 0
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])

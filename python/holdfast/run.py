"""`python -m holdfast.run`, as `python -m torch.distributed.run`: the same as `holdfast run`."""

from __future__ import annotations

import sys

from holdfast.cli import main

if __name__ == "__main__":
    main(["run", *sys.argv[1:]])

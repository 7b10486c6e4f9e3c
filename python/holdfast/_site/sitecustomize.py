"""Let a spare of `holdfast run` wait where its program reads its rank, from its first line on.

_spare.py puts this file's folder first in PYTHONPATH. This file takes the folder out again, so that
programs started by this one do not get it, and runs the site's own sitecustomize, if there is one.
"""

import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _step_aside() -> None:
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path and path != _HERE)


def _run_the_hidden_one() -> None:
    for folder in sys.path:
        path = os.path.join(folder, "sitecustomize.py")
        if os.path.isfile(path):
            spec = importlib.util.spec_from_file_location("_site_sitecustomize", path)
            if spec is not None and spec.loader is not None:
                spec.loader.exec_module(importlib.util.module_from_spec(spec))
            return


def _wait_for_the_rank() -> None:
    from holdfast.job import init

    _ = init().place


_step_aside()
_run_the_hidden_one()
try:
    from holdfast._ranks import wait_where_they_are_read
except ImportError as error:  # This is not the Python that Holdfast is installed in.
    print(f"holdfast: this spare can not wait for its rank: {error}", file=sys.stderr)
else:
    wait_where_they_are_read(_wait_for_the_rank)

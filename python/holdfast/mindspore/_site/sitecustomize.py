"""Install Holdfast's hook for MindSpore at Python's start, then run the site's own file, if any."""

import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _next() -> None:
    """Run the sitecustomize that this one hides."""
    for folder in sys.path:
        path = os.path.join(folder, "sitecustomize.py")
        if os.path.abspath(folder) != _HERE and os.path.isfile(path):
            spec = importlib.util.spec_from_file_location("_site_sitecustomize", path)
            if spec is not None and spec.loader is not None:
                spec.loader.exec_module(importlib.util.module_from_spec(spec))
            return


_next()
try:
    from holdfast.mindspore import _hook
except ImportError as error:  # This is not the Python that Holdfast is installed in.
    if os.environ.get("MS_ROLE"):
        print(f"holdfast: MindSpore runs without Holdfast: {error}", file=sys.stderr)
else:
    _hook.install()

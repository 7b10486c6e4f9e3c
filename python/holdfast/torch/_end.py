"""End the training when the program ends well.

Python does not say with which code it ends. The C library does: the session is ended by that, after
all of Python's own exit handlers (Session.end_on_exit). What has to be seen before is seen here.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING

from holdfast._errors import UserError

if TYPE_CHECKING:
    from holdfast.torch._engine import Engine


def end_when_the_program_ends(engine: Engine) -> None:
    """Have the engine finish at an exit without an error."""
    owner = os.getpid()

    def at_exit() -> None:
        # An exception that nobody caught leaves its trace in sys.last_value.
        if os.getpid() != owner or getattr(sys, "last_value", None) is not None:
            return
        try:
            engine.finish()
        except UserError as error:
            print(f"holdfast: {error}", file=sys.stderr, flush=True)
            sys.stdout.flush()
            os._exit(1)  # An exception here would leave the code of a good end.

    atexit.register(at_exit)

"""Read from the text of this process's program whether it has a training, and which."""

from __future__ import annotations

import re

from holdfast._secure import text_of_the_script


def calls_train() -> bool:
    """Return whether the script has Model(...).train(...), or .fit()."""
    found = text_of_the_script()
    return "Model(" in found and any(word in found for word in (".train(", ".fit("))


def has_state() -> bool:
    """Return whether the script has a holdfast.mindspore.State."""
    found = text_of_the_script()
    return "State(" in found and "holdfast.mindspore" in found


def sets_tls() -> bool:
    """Return whether the script may put the job under TLS before init()."""
    found = text_of_the_script()
    return "set_ps_context(" in found and "enable_ssl" in found and "init(" in found


def asks_for_rank_before_import() -> bool:
    """Return whether the script may read its rank's variables before it imports MindSpore."""
    before = re.split(
        r"^\s*(?:import|from)\s+mindspore\b", text_of_the_script(), maxsplit=1, flags=re.MULTILINE
    )
    return any(word in before[0] for word in ("RANK_ID", "DEVICE_ID"))

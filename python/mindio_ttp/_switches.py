"""Read MS_ENABLE_TFT, and refuse a wrong value before anything starts.

MindSpore searches the value for texts such as `TTP:1`. A misspelt name switches nothing on, without
a word, and a name without a colon ends the import of MindSpore with an IndexError. This module
imports nothing heavy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import Final, NamedTuple

VARIABLE: Final = "MS_ENABLE_TFT"
# In the order of MindSpore's own check.
_KNOWN: Final = ("TTP", "UCE", "ARF", "HCCE")
_ABSENT: Final = {
    "ATO": "advice on checkpoint intervals",
    "RSC": "rescheduling by MindCluster",
    "TRE": "going back to a checkpoint at a wrong result",
    "TSP": "pausing between two steps",
}
_EXPECTED: Final = "expected is e.g. '{TTP:1}' or '{TTP:1,UCE:1,ARF:1}'"


class Switches(NamedTuple):
    """What a value of MS_ENABLE_TFT asks for."""

    on: tuple[str, ...]  # Some of TTP, UCE, ARF, HCCE, in this order.
    remarks: tuple[str, ...]  # A sentence on each feature that is asked for and not offered.

    @property
    def text(self) -> str:
        """The value in the form that MindSpore's own code understands; empty if nothing is on."""
        return "{" + ",".join(f"{name}:1" for name in self.on) + "}" if self.on else ""

    @property
    def gasps(self) -> bool:
        """Whether a lost process ends the job with a last checkpoint, and is not replaced."""
        return "ARF" not in self.on and ("TTP" in self.on or "UCE" in self.on)


def _refuse(value: str, what: str, what_to_do: str) -> ValueError:
    return ValueError(f"{VARIABLE} is '{value}': {what}; {_EXPECTED}; {what_to_do}")


def read(value: str) -> Switches:
    """Return what a value of MS_ENABLE_TFT asks for.

    Names are separated by commas or, as in two of MindSpore's documents, by blanks. ValueError: a
    sentence that names the variable, what was expected and what to do.
    """
    text = value.strip()
    if text[:1] == "{" or text[-1:] == "}":
        if text[:1] + text[-1:] != "{}" or len(text) < 2:
            raise _refuse(value, "one of its braces is missing", "write both, or none")
        text = text[1:-1]
    found: dict[str, str] = {}
    for item in re.split(r"[,\s]+", re.sub(r"\s*:\s*", ":", text).strip(", \t\n")):
        if not item:
            continue
        name, colon, number = item.partition(":")
        if name not in (*_KNOWN, *_ABSENT):
            raise _refuse(
                value,
                f"'{name}' is no switch",
                f"there are {', '.join(_KNOWN)}, and {', '.join(_ABSENT)}, which Holdfast has not",
            )
        if not colon or number not in ("0", "1", *(["2"] if name == "TRE" else [])):
            said = f"is '{number}'" if colon else "has no value"
            raise _refuse(value, f"{name} {said}", f"write {name}:1, or {name}:0 to leave it off")
        if found.setdefault(name, number) != number:
            raise _refuse(value, f"{name} is there twice and differs", "leave one of them out")
    return Switches(
        tuple(name for name in _KNOWN if found.get(name) == "1"),
        tuple(
            f"{VARIABLE} asks for {name} ({meaning}), which is not there; the job goes on without"
            for name, meaning in _ABSENT.items()
            if found.get(name, "0") != "0"
        ),
    )


def gasp(environment: Mapping[str, str]) -> bool:
    """Return whether a lost process ends the job with a last checkpoint, and is not replaced."""
    return read(environment.get(VARIABLE, "")).gasps


def settle(environment: MutableMapping[str, str]) -> tuple[str, ...]:
    """Rewrite MS_ENABLE_TFT so that MindSpore's own code understands it; return remarks.

    ValueError: a sentence that says what is wrong with it, or with MS_TFT_PORT.
    """
    check_port(environment.get("MS_TFT_PORT", ""))
    given = environment.get(VARIABLE)
    if not given:
        return ()
    switches = read(given)
    environment[VARIABLE] = switches.text
    return switches.remarks


def check_port(value: str) -> None:
    """Check a value of MS_TFT_PORT. ValueError: a sentence that says what is wrong with it."""
    port = value.strip()
    if port and not (port.isdecimal() and len(port) < 6 and 0 < int(port) < 65536):
        raise ValueError(
            f"MS_TFT_PORT is '{value}'; expected is a whole number from 1 to 65535; unset it: "
            "Holdfast needs no port of its own for fault tolerance"
        )

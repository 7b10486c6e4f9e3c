"""Make set_ps_context(enable_ssl=True, ...) put the job's connections under TLS."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import holdfast
from holdfast._errors import UserError
from holdfast.mindspore._imported import imported

_PASSWORDS: Final = ("client_password", "server_password")
_said: dict[str, Any] = {}


def _is_set(field: str) -> bool:
    variable = f"HOLDFAST_TLS_{field.upper()}"
    return bool(os.environ.get(variable) or os.environ.get(f"{variable}_FILE"))


def _missing() -> list[str]:
    return [
        field
        for field in ("config_file_path", *_PASSWORDS)
        if not _said.get(field) and not (field in _PASSWORDS and _is_set(field))
    ]


def apply(tell: Callable[..., None] = holdfast.set_ps_context) -> None:
    """Have set_ps_context() tell Holdfast of the secure channel."""
    # It sets options of MindSpore's own cluster, which is never started (_ps_context.py).
    contexts = imported("mindspore.context")
    usual = contexts._set_ps_context

    def set_ps_context(**named: Any) -> None:
        # MindSpore's context would hold the passwords to the process's end, and has no use for
        # them. It still looks at all names and types. The script's own texts can not be wiped.
        usual(
            **{
                name: "" if name in _PASSWORDS and isinstance(value, str) else value
                for name, value in named.items()
            }
        )
        fields = ("enable_ssl", "config_file_path", *_PASSWORDS)
        _said.update({name: value for name, value in named.items() if name in fields})
        if _said.get("told") and not any(name in fields for name in named):
            return
        if not _said.get("enable_ssl") or _missing():
            return  # More may come, up to init().
        try:
            tell(**{name: _said[name] for name in fields if name in _said})
            _said["told"] = True
        finally:  # A script that catches the error still wants TLS, and has to say them again.
            for name in _PASSWORDS:
                _said.pop(name, None)

    contexts._set_ps_context = set_ps_context


def check() -> None:
    """Find at init() that the script has asked for TLS, but not said all that it needs."""
    known = _said.get("told") or os.environ.get("HOLDFAST_TLS_CONFIG")
    if _said.get("enable_ssl") and not known:
        raise UserError(
            f"set_ps_context(enable_ssl=True) was called without {' and '.join(_missing())}; "
            "init() needs all of them before it"
        )

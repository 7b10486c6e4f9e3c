"""Make set_ps_context(enable_ssl=True, ...) put the job's connections under TLS."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import holdfast
from holdfast._errors import UserError
from holdfast._secure import say_unseen
from holdfast.mindspore import _script
from holdfast.mindspore._imported import imported

_PASSWORDS: Final = ("client_password", "server_password")
_FIELDS: Final = ("enable_ssl", "config_file_path", *_PASSWORDS)
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


def _forget_passwords() -> None:
    for name in _PASSWORDS:
        _said.pop(name, None)


def _pass_on(named: dict[str, Any], tell: Callable[..., None], *, in_worker: bool) -> None:
    if _said.get("told") and not any(name in _FIELDS for name in named):
        return
    if not _said.get("enable_ssl") or _missing():
        return  # More may come, up to init().
    if in_worker and not _script.sets_tls():  # The scheduler looks there, too, and saw none.
        say_unseen("that call and init()")
    tell(**{name: _said[name] for name in _FIELDS if name in _said})
    _said["told"] = True
    _forget_passwords()


def apply(tell: Callable[..., None] = holdfast.set_ps_context, *, in_worker: bool = False) -> None:
    """Have set_ps_context() tell Holdfast of the secure channel."""
    # The usual function sets options of MindSpore's own cluster, which is never started.
    contexts = imported("mindspore.context")
    usual = contexts._set_ps_context

    def set_ps_context(**named: Any) -> None:
        # Before anything can fail: a script that catches an error still wants TLS.
        _said.update({name: value for name, value in named.items() if name in _FIELDS})
        try:
            # MindSpore checks all names and types, but does not need the passwords, and would hold
            # them to the process's end. The script's own strings can not be wiped.
            usual(
                **{
                    name: "" if name in _PASSWORDS and isinstance(value, str) else value
                    for name, value in named.items()
                }
            )
            _pass_on(named, tell, in_worker=in_worker)
        except Exception as error:
            _said["failed"] = str(error)
            _forget_passwords()
            raise

    contexts._set_ps_context = set_ps_context


def check() -> None:
    """Raise UserError at init() if the script asked for TLS but did not say all it needs."""
    known = _said.get("told") or os.environ.get("HOLDFAST_TLS_CONFIG")
    if _said.get("enable_ssl") and not known:
        if failed := _said.get("failed"):
            raise UserError(
                "set_ps_context(enable_ssl=True) failed, and the script went on; the job is not "
                f"put in the clear instead: {failed}"
            )
        raise UserError(
            f"set_ps_context(enable_ssl=True) was called without {' and '.join(_missing())}; "
            "init() needs all of them before it"
        )

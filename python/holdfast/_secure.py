"""Put this process's connections under TLS."""

from __future__ import annotations

import ctypes as c
import os
import sys
from pathlib import Path

from holdfast._abi import check, lib
from holdfast._say import say


def set_ps_context(
    *,
    config_file_path: str = "",
    enable_ssl: bool = False,
    client_password: str = "",
    server_password: str = "",
) -> None:
    """Put all connections of this process to its scheduler under mutual TLS, if `enable_ssl`.

    Call it before init(), in every process of the job. The names are MindSpore's; the file is its
    config.json (docs/security.md). In place of an empty password, that of the environment is taken.
    Python can not wipe a string, so a password that is given here stays in memory.

    Errors: UserError names the file or the password that is wrong. If the program catches it and
    goes on, init() fails, since a job that is to be under TLS never runs in the clear.
    """
    if not enable_ssl:
        return
    try:
        path = os.fsencode(config_file_path)
        texts = [text.encode() for text in (client_password, server_password)]
    except Exception:
        lib.hf_set_tls(b"", b"", b"")  # This is refused too, which makes init() fail.
        raise
    secrets = [c.create_string_buffer(text) for text in texts]
    try:
        check(lib.hf_set_tls(path, *secrets))
    finally:
        for secret in secrets:
            c.memset(secret, 0, len(secret))
    of_run = os.environ.get("MS_ROLE") == "MS_WORKER" and os.environ.get("HOLDFAST_AGENT")
    text = text_of_the_script() if of_run else ""  # _shim.sh looks for the same words.
    if text and not all(word in text for word in ("set_ps_context(", "enable_ssl")):
        say_unseen("the call")


def text_of_the_script() -> str:
    """Return the text of the program if it is a script."""
    script = sys.argv[0] if sys.argv else ""
    if not os.path.isfile(script) or not script.endswith(".py"):
        return ""
    return Path(script).read_text(errors="replace")


def say_unseen(what: str) -> None:
    """Say in a worker that the scheduler, which searches the script for `what`, misses it."""
    if os.environ.get("HOLDFAST_TLS_CONFIG"):
        return
    frame = sys._getframe(1)
    while frame.f_back and _is_library(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    say(
        f"set_ps_context(enable_ssl=True) was called in module "
        f"{frame.f_globals.get('__name__')} ({frame.f_code.co_filename}). The job's scheduler does "
        f"not see it: it looks for {what} in the text of the script alone ({sys.argv[0]}), so it "
        "serves in the clear. Put the call into the script, or set HOLDFAST_TLS_CONFIG for all "
        "processes of the job"
    )


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in ("holdfast", "mindspore")

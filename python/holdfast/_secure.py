"""Put this process's connections under TLS."""

from __future__ import annotations

import ctypes as c
import os

from holdfast._abi import check, lib


def set_ps_context(
    *,
    config_file_path: str = "",
    enable_ssl: bool = False,
    client_password: str = "",
    server_password: str = "",
) -> None:
    """Put all connections of this process to its scheduler under mutual TLS, if `enable_ssl`.

    Call it before init(), in every process of the job. The names are MindSpore's; the file is its
    config.json (docs/security.md). An empty password comes from where the settings say. Python's
    texts can not be wiped.

    Errors: UserError names the file or the password that is wrong.
    """
    if not enable_ssl:
        return
    secrets = [c.create_string_buffer(text.encode()) for text in (client_password, server_password)]
    try:
        check(lib.hf_set_tls(os.fsencode(config_file_path), *secrets))
    finally:
        for secret in secrets:
            c.memset(secret, 0, len(secret))

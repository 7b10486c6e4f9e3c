"""`python -m holdfast.mindspore script.py ...`, or any other command: run it with the hook."""

from __future__ import annotations

import sys

from holdfast.mindspore._launch import main

main(sys.argv[1:])

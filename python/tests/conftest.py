"""Marks of the tests."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kill: starts whole jobs and kills their processes; slow")

"""Marks of the tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("torch_kills")  # Test files import it before it is a plugin.


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kill: starts whole jobs and kills their processes; slow")

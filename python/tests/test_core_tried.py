"""What was tried with which versions: the file, the table of the docs, the sentences."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import _tried

ROOT = Path(__file__).resolve().parents[2]
THIS = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(name="tool")
def tool_of() -> Any:
    loader = importlib.machinery.SourceFileLoader("versions", str(ROOT / "tools" / "versions"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("versions", loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


def entry(version: str, python: str, result: str = _tried.WORKS) -> dict[str, Any]:
    return {
        **{"framework": "torch", "version": version, "python": python},
        **{"result": result, "tests": 7, "brief": False, "whole": False, "day": "2026-11-30"},
    }


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tried.json"
    monkeypatch.setattr(_tried, "FILE", path)
    return path


def test_core_the_tables_of_the_docs_are_those_of_the_file(tool: Any) -> None:
    for framework, page in tool.PAGES.items():
        text: str = page.read_text()
        assert tool.with_table(text, framework) == text
        for cell in _tried.cells(framework):
            assert f"| {framework} {cell['version']} |" in text
    works = _tried.working("torch")
    assert f"PyTorch from PyPI, {works[0]} to {works[-1]} (" in (ROOT / "README.md").read_text()


def test_core_a_pair_that_was_tried_again_takes_the_place_of_the_former(
    tool: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool._tried, "FILE", file)
    file.write_text("[]")
    for one in (entry("2.10.0", "3.11"), entry("2.9.1", "3.11"), entry("2.10.0", "3.11", "bad")):
        tool.write(one)
    found = json.loads(file.read_text())
    assert [(e["version"], e["result"]) for e in found] == [("2.9.1", "works"), ("2.10.0", "bad")]
    whole = {**entry("2.9.1", "3.9"), "brief": True, "whole": True}
    assert list(tool.table([*found, whole, entry("2.9.0", "3.9", _tried.NO_WHEEL)])) == [
        "| | Python 3.9 | Python 3.11 |",
        "| --- | --- | --- |",
        "| torch 2.10.0 |  | bad |",
        "| torch 2.9.1 | 7 tests, brief, whole | 7 tests |",
        "| torch 2.9.0 | no wheel |  |",
    ]


def test_core_a_version_that_works_or_was_not_tried_is_not_refused(file: Path) -> None:
    file.write_text(json.dumps([entry("2.9.1", THIS), entry("2.11.0", "3.0", "bad")]))
    assert _tried.working("torch") == ["2.9"]
    for version in ("2.9.1", "2.9.0", "2.10.0", "2.11.0+cpu", "2.99.0a0+git1"):
        assert _tried.refusal("torch", version) is None


def test_core_a_version_that_fails_or_is_too_old_is_refused_by_a_sentence(file: Path) -> None:
    bad = "2 tests failed, test_a first"
    file.write_text(json.dumps([entry("2.9.1", "3.0"), entry("2.11.0", THIS, bad)]))
    assert _tried.refusal("torch", "2.11.3") == (
        f"torch 2.11.3 does not work with Holdfast on Python {THIS}: {bad}; these do: 2.9 "
        f"({_tried.WHERE['torch']})"
    )
    assert "torch 2.8.0 is older than the oldest" in str(_tried.refusal("torch", "2.8.0"))

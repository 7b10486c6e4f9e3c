"""No file but _private.py uses a private name of torch; its sentences name what is gone."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_job import needs_torch

import holdfast
from holdfast import UserError
from holdfast.torch import _private
from holdfast.torch._group import HoldfastGroup

pytestmark = needs_torch

PACKAGE = Path(str(holdfast.__file__)).parent
# Of Python itself, and of what is not torch's: a trainer's names stand with that trainer.
FOREIGN = {"_exit", "_getframe", "_replace", "_Unpickler"}
NOT_OF_TORCH = (
    *("mindspore", "torch/_trainers", "torch/_private.py", "verify/_mindspore.py"),
    *("torch/transformers.py", "torch/lightning.py", "torch/ignite.py", "torch/_logged.py"),
)
# Pickles name it, and nothing else reads one without running it (snapshots/_safe.py).
NOT_AVOIDED = {"_untyped_storage"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names(trees: list[ast.Module]) -> set[str]:
    """Return the private names that the package gives to things of its own."""
    found = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "ours", "tee"):
                found.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "self.__dict__.update":
            found.update(keyword.arg or "" for keyword in node.keywords)
    return found


def used(node: ast.AST) -> list[str]:
    """Return the private names that a node asks something else for."""
    if isinstance(node, ast.Attribute):
        of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        return [] if of_self else [node.attr]
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
        return [*(node.module or "").split("."), *(alias.name for alias in node.names)]
    if isinstance(node, ast.Import):
        return [part for alias in node.names for part in alias.name.split(".")]
    if isinstance(node, ast.Call) and len(node.args) > 0:
        called = ast.unparse(node.func)
        words = [a.value for a in node.args if isinstance(a, ast.Constant)]
        texts = [word for word in words if isinstance(word, str)]
        if called in ("getattr", "hasattr", "setattr", "delattr"):
            return texts
        if called.endswith("import_module"):
            return [part for text in texts if text.startswith("torch") for part in text.split(".")]
    return []


def private_names(text: str, own: set[str]) -> list[str]:
    """Return each private name of torch's that a file uses, with its line."""
    allowed = (own - set(_private.NAMES)) | FOREIGN | NOT_AVOIDED
    return [
        f"{getattr(node, 'lineno', 0)}: {name}"
        for node in ast.walk(ast.parse(text))
        for name in used(node)
        if is_private(name) and name not in allowed
    ]


def test_torch_private_names_stand_in_one_file() -> None:
    files = [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if not str(path.relative_to(PACKAGE)).startswith(NOT_OF_TORCH)
    ]
    assert len(files) > 100
    own = own_names([ast.parse(path.read_text()) for path in files])
    found = {str(path): private_names(path.read_text(), own) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "x = tensor._version",
        "from torch._C import _distributed_c10d",
        "import torch._dynamo",
        "importlib.import_module('torch._dynamo')",
        "getattr(ddp, '_comm_hooks', ())",
        "ddp._buffers['a'] = 1",
        "from torch.distributed.utils import _sync_module_states",
    ],
)
def test_torch_a_private_name_elsewhere_is_found(line: str) -> None:
    assert private_names(line, {"_buffers", "_version_of"})


def test_torch_each_private_name_is_listed_and_used() -> None:
    text = (PACKAGE / "torch" / "_private.py").read_text()
    own = own_names([ast.parse(text)])
    names = {
        name
        for node in ast.walk(ast.parse(text))
        for name in [
            *used(node),
            *([node.value] if isinstance(node, ast.Constant) else []),  # take(thing, "_name")
        ]
        if isinstance(name, str) and name.isidentifier() and is_private(name)
    }
    listed = {name for name in _private.NAMES if is_private(name)} | set(_private.ASKED)
    assert names - own - {"_C", "_distributed_c10d"} == listed


def test_torch_finds_its_names_at_a_group() -> None:
    shared = {n for n in dir(HoldfastGroup) if is_private(n) and hasattr(dist.ProcessGroup, n)}
    inherited = {n for n in shared if getattr(HoldfastGroup, n) is getattr(dist.ProcessGroup, n)}
    assert shared - inherited <= set(_private.ASKED)


def test_torch_a_name_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_rng_state()
    assert _private.missing() == []
    assert torch.equal(torch.get_rng_state(), before)
    plain: Any = torch.optim.lr_scheduler.LambdaLR.__init__

    def without(self: Any, optimizer: Any, function: Any) -> None:
        plain(self, optimizer, function)
        del optimizer.step

    monkeypatch.setattr(torch.optim.lr_scheduler.LambdaLR, "__init__", without)
    assert _private.missing() == ["_wrapped_by_lr_sched"]
    monkeypatch.delattr(dist, "_compute_bucket_assignment_by_size")
    assert _private.missing() == ["_wrapped_by_lr_sched", "_compute_bucket_assignment_by_size"]
    with pytest.raises(UserError) as refused:
        _private.change_counts([object()])
    assert "has no `_version` any more, by which Holdfast sees that a tensor was" in str(
        refused.value
    )
    assert str(refused.value).endswith("(docs/reference/pytorch.md#versions)")


def test_torch_copies_without_a_name_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "_foreach_copy_")
    target = torch.zeros(3)
    _private.copy_each([target], [torch.ones(3)])
    assert target.tolist() == [1.0, 1.0, 1.0]

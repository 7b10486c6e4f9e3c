"""What `holdfast snapshot export` makes is loaded by plain PyTorch: the same bits, and no code."""
# With --ci: whole jobs whose snapshots are exported, each loaded by a process of its own.

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from everything_lost import whole
from torch_job import HERE, LIMIT_S, needs_torch

torch = pytest.importorskip("torch")

from export_net import Net, evaluate, optimizers, train  # noqa: E402
from snapshot_files import forge  # noqa: E402

from holdfast import _head  # noqa: E402
from holdfast._errors import UserError  # noqa: E402
from holdfast._snapshot_files import find  # noqa: E402
from holdfast.snapshots import _safe  # noqa: E402
from holdfast.snapshots._diff import main as compare  # noqa: E402
from holdfast.snapshots._export import main  # noqa: E402
from holdfast.snapshots._safe import loads, plain  # noqa: E402
from holdfast.snapshots._sources import source_of  # noqa: E402
from holdfast.snapshots._torch import TorchImage  # noqa: E402

pytestmark = needs_torch


def make(folder: Path, program: str, *words: str, ranks: int = 2, last: str = "") -> Path:
    """Train and return the folder of its snapshots."""
    command = [
        *(sys.executable, "-m", "holdfast", "run", "--nproc-per-node", str(ranks)),
        *("--snapshot", str(folder / "snapshots"), "--snapshot-every", "3"),
        *("--log-dir", str(folder / "log")),
        *(str(HERE / program), *words, str(folder), *([last] if last else [])),
    ]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "HOLDFAST_REHEARSALS": "0"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LIMIT_S)
    logs = "".join(file.read_text() for file in folder.glob("log/*"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    return folder / "snapshots"


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("ddp"), "torch_export.py", "ddp")


@pytest.fixture(scope="module")
def fsdp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("fsdp"), "torch_export.py", "fsdp")


def export(*words: Any, code: int = 0) -> str:
    """Run the command in this process; return what it says."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            found = main([str(word) for word in words])
        except SystemExit as end:
            found = int(end.code or 0)
    assert found == code, said.getvalue()
    return said.getvalue()


def own(snapshots: Path, step: int) -> Any:
    """Return what the program itself has saved after a step."""
    return torch.load(snapshots.parent / f"own-{step}", weights_only=True)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(v, other[k]) for k, v in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(type(one) is type(other) and one == other)


# ---- torch ---------------------------------------------------------------------------------------


def test_a_file_for_torch_has_what_the_program_would_have_saved(ddp: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "snapshot", "export", str(ddp)]
    command += ["--to", str(tmp_path / "out.pt")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    there = own(ddp, found["step"])
    assert f"step {found['step']} as torch of rank 0, from {whole(ddp)[0]}" in said
    for name in ("model", "optimizer", "scheduler"):
        assert equal(found[name], there[name]), name
    assert found["average"].tolist() == [found["step"]] * 4
    assert equal(found["vars"], {"best": found["step"] - 1.0, "counts": {"a": torch.arange(3)}})
    assert found["model"]["last.weight"] is not None
    tied = found["model"]["last.weight"], found["model"]["embed.weight"]
    assert tied[0].data_ptr() == tied[1].data_ptr()


def test_plain_pytorch_goes_on_from_it_with_the_same_bits(ddp: Path, tmp_path: Path) -> None:
    folder = whole(ddp)[-1]  # A snapshot by its name, and not the newest.
    export(folder, "--to", tmp_path / "out.pt")
    step = torch.load(tmp_path / "out.pt", weights_only=True)["step"]
    # A process without Holdfast.
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    said = [
        subprocess.run(
            [sys.executable, str(HERE / "export_net.py"), str(file)],
            env={**variables, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            capture_output=True,
            text=True,
        )
        for file in (tmp_path / "out.pt", ddp.parent / f"own-{step}")
    ]
    assert said[0].stdout == said[1].stdout != "", said[0].stderr
    assert said[0].stdout.startswith(repr(own(ddp, step)["loss"]))


def test_names_can_be_left_out(ddp: Path, tmp_path: Path) -> None:
    export(ddp, "--to", tmp_path / "out.pt", "--without", "seen", "--without", "vars")
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert list(found) == ["model", "optimizer", "average", "scheduler", "step", "epoch"]
    said = export(ddp, "--to", tmp_path / "b", "--without", "weights", code=1)
    assert "--without weights: State keeps nothing under this name; it keeps model, " in said


# ---- Other formats -------------------------------------------------------------------------------


def test_safetensors_has_the_models_tensors(ddp: Path, tmp_path: Path) -> None:
    said = export(ddp, "--to", tmp_path / "out", "--format", "safetensors")
    assert "safetensors has tensors alone, so _extra_state is not in it" in said
    raw = (tmp_path / "out").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    about = header.pop("__metadata__")
    there = own(ddp, int(about["step"]))["model"]
    del there["_extra_state"]
    assert (8 + length) % 8 == 0 and about["format"] == "pt" and header.keys() == there.keys()
    end = 0
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        content = raw[8 + length + begin : 8 + length + end]
        kind = {"F32": torch.float32, "I64": torch.int64}[tensor["dtype"]]
        found = torch.frombuffer(bytearray(content), dtype=kind).view(tensor["shape"])
        assert equal(found, there[name]), name
    assert 8 + length + end == len(raw)
    try:
        from safetensors.torch import load_file
    except ImportError:
        return
    assert all(equal(v, there[k]) for k, v in load_file(tmp_path / "out").items())


def test_a_distributed_checkpoint_is_loaded_by_torch(ddp: Path, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    export(ddp, "--to", tmp_path / "out", "--format", "dcp")
    net = Net()
    optimizer, scheduler = optimizers(net)
    train(net, optimizer, scheduler, 1)  # So that it has a state to be loaded into.
    wanted = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 0}
    dcp.load(wanted, checkpoint_id=str(tmp_path / "out"), no_dist=True)
    there = own(ddp, wanted["step"])
    assert equal(wanted["model"], there["model"])
    assert equal(wanted["optimizer"]["state"], there["optimizer"]["state"])
    net.load_state_dict(wanted["model"])
    assert evaluate(net) == there["loss"]


def test_parts_of_a_sharded_model_go_to_one_file_each(fsdp: Path, tmp_path: Path) -> None:
    said = export(fsdp, "--to", tmp_path / "out", "--rank", "all")
    assert "each file is a shard" in said and "of ranks 0 to 1" in said
    parts = [torch.load(tmp_path / "out" / f"rank-{r}.pt", weights_only=True) for r in (0, 1)]
    for part in parts:
        assert part["model"]["embed.weight"].shape == (3, 8)
        assert part["optimizer"]["state"][0]["exp_avg"].shape == (3, 8)
    export(fsdp, "--to", tmp_path / "one", "--rank", "1")
    assert equal(torch.load(tmp_path / "one", weights_only=True), parts[1])


@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_of_fully_shard_are_put_together(ranks: int, tmp_path: Path) -> None:
    from torch_sharded import batch, plain

    snapshots = make(tmp_path, "torch_sharded.py", ranks=ranks)
    said = export(snapshots, "--to", tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    there = own(snapshots, found["step"])
    assert f"of ranks 0 to {ranks - 1}, from " in said
    assert equal(found["model"], there["model"])
    states = list(there["optimizer"]["state"].values())
    assert equal(dict(enumerate(states)), found["optimizer"]["state"]) and len(states) == 7
    # A plain model and optimizer.
    net, optimizer = plain()
    net.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    net.eval()
    x, y = batch(999, 0)
    assert torch.nn.functional.mse_loss(net(x), y).item() == there["loss"]
    # Another number of ranks.
    make(tmp_path, "torch_sharded.py", ranks=5 - ranks, last=str(tmp_path / "out.pt"))
    assert equal(torch.load(tmp_path / "begun", weights_only=True), there)
    # Other formats.
    export(snapshots, "--to", tmp_path / "out", "--format", "safetensors")
    raw = (tmp_path / "out").read_bytes()
    for name, tensor in there["model"].items():
        assert tensor.numpy().tobytes() in raw, name


def test_other_parts_are_refused_by_name(fsdp: Path, tmp_path: Path) -> None:
    image = source_of(find(fsdp), 0)
    assert isinstance(image, TorchImage)
    key = ("model", "model1", "first.weight")
    place = image._places[key]
    assert place.whole == ((8, 8), (2,), (0, 1), (0,))
    for change, why in (
        ({"mesh": (2, 1), "cuts": ("R", 0)}, r"placed \('R', 0\) on a mesh of 2 x 1 ranks"),
        ({"cuts": ("_StridedShard(dim=0)",)}, "on a mesh of 2 ranks"),
    ):
        image._places[key] = place._replace(whole=place.whole._replace(**change))
        with pytest.raises(UserError, match=f"`model1.first.weight` is {why}|{why}"):
            image.join([image, image])
    image._places[key] = place._replace(whole=place.whole._replace(shape=(9, 8)))
    image.join([image, image])
    with pytest.raises(UserError, match="its image makes no sense"):
        image.everything(set())
    snapshots = make(tmp_path, "torch_export.py", "flat")
    said = export(snapshots, "--to", tmp_path / "out", code=1)
    assert "`model1` was cut by FullyShardedDataParallel, which does not say where" in said
    assert "--rank all one file for each" in said


def test_parameters_that_holdfast_updates_are_exported_by_name(tmp_path: Path) -> None:
    snapshots = make(tmp_path, "floats_core.py")
    said = export(snapshots, "--to", tmp_path / "out")
    assert "parameters are flat" in said
    found = torch.load(tmp_path / "out", weights_only=True)
    own = torch.frombuffer(
        bytearray((tmp_path / f"own-{found['step']}").read_bytes()), dtype=torch.float32
    )
    model, moments = found["model"], found["optimizer"]["moments"]
    assert found["optimizer"]["kind"] == "Adam" and list(moments) == ["exp_avg", "exp_avg_sq"]
    assert list(model) == ["fc.weight", "fc.bias"]
    parts = [part for region in (model, *moments.values()) for part in region.values()]
    assert torch.equal(torch.cat(parts), own) and bool((own != 0).all())
    newer, older = whole(snapshots)[:2]
    assert "fc.weight (exp_avg): " in diff(older, newer, code=1)
    assert " 0 different" in diff(newer, newer, code=0)
    export(snapshots, "--to", tmp_path / "out.safetensors", "--format", "safetensors")
    assert model["fc.bias"].numpy().tobytes() in (tmp_path / "out.safetensors").read_bytes()


# ---- diff ----------------------------------------------------------------------------------------


def diff(*words: Any, code: int) -> str:
    """Run the command in this process; return what it says."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            found = compare([str(word) for word in words])
        except SystemExit as end:
            found = int(end.code or 0)
    assert found == code, said.getvalue()
    return said.getvalue()


def test_what_differs_is_named_with_how_far_apart_it_is(ddp: Path) -> None:
    newer, older = whole(ddp)[:2]
    said = diff(ddp, newer, code=0)
    assert f"A: {newer}\nB: {newer}\nrank" in said and "0 different" in said
    said = diff(older, newer, code=1)
    steps = [int(folder.name.rpartition("-")[2]) for folder in (older, newer)]
    assert f"step: {steps[0]}, {steps[1]}\n" in said
    found = json.loads(diff(older, newer, "--json", code=1))
    files = [torch.load(ddp.parent / f"own-{n}", weights_only=True) for n in state_n(found)]
    one, other = (file["model"]["first.weight"] for file in files)
    bytes_differ = (one.view(torch.uint8) != other.view(torch.uint8)).sum().item()
    for rank in found["ranks"]:
        change = next(c for c in rank["differs"] if c["name"] == "model.first.weight")
        assert change["bytes"] == bytes_differ and change["of"] == 256
        assert change["most"] == (one.double() - other.double()).abs().max().item()
        names = {change["name"] for change in rank["differs"]}
        assert {"optimizer.state.0.exp_avg", "scheduler.last_epoch", "vars.best"} <= names
        assert "vars.counts.a" not in names and "model.scale" not in names
        only = [*rank["only_a"], *rank["only_b"], *rank["unread"]]
        assert all(name.startswith("gradient of ") for name in only), only
    assert "model.first.weight: " in said and f"; max |a-b| = {change['most']:.6g}\n" in said


def state_n(found: dict[str, Any]) -> Any:
    changes = found["ranks"][0]["differs"]
    return next((int(c["a"]), int(c["b"])) for c in changes if c["name"] == "state.n")


def test_one_changed_byte_is_found(copy: Path, ddp: Path) -> None:
    def change(name: str, content: bytearray) -> None:
        if name.startswith("own.") and not content.startswith(b"HFTORCH2"):
            content[0] ^= 1  # Of a buffer that is not exported.

    forge(copy, 1, change)
    said = diff(whole(ddp)[0], copy, code=1)
    assert said.count(" different\n") == 2 and "rank 0: " in said and ", 0 different\n" in said
    assert "buffer of model1.module.scale: 1 of 4 bytes differ, the first at 0; max " in said, said
    assert "rank 1: " in said and ", 1 different\n" in said, said


def test_other_ranks_and_programs_differ(ddp: Path, fsdp: Path, copy: Path) -> None:
    found = json.loads(diff(ddp, fsdp, "--json", code=1))
    assert "program" in found["about"] and "release" not in found["about"]
    assert any("float32" in str(change.get("a")) for change in found["ranks"][0]["differs"])
    evil = Evil(copy / "ran")
    forge(copy, 0, changed(lambda objects: objects["others"].update(scheduler=evil)))
    said = diff(whole(ddp)[0], copy, code=1)
    assert "not compared: " in said and "`posix.system` makes" in said
    assert not (copy / "ran").exists()
    assert "there is no whole snapshot" in diff(ddp.parent, ddp, code=2)
    assert "--help" in diff(ddp, code=2)


# ---- OUT -----------------------------------------------------------------------------------------


def test_what_is_there_is_replaced_only_by_force(ddp: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    assert "--force replaces it" in export(ddp, "--to", out, code=1)
    assert out.read_text() == "mine"
    export(ddp, "--to", out, "--force")
    assert "model" in torch.load(out, weights_only=True)
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "thesis.txt").write_text("mine")
    said = export(ddp, "--to", folder, "--force", "--rank", "all", code=1)
    assert "thesis.txt, which was not exported" in said
    export(ddp, "--to", tmp_path / "all", "--rank", "all")
    export(ddp, "--to", tmp_path / "all", "--rank", "all", "--force", "--format", "safetensors")
    assert sorted(os.listdir(tmp_path / "all")) == ["rank-0.safetensors", "rank-1.safetensors"]
    assert sorted(os.listdir(tmp_path)) == ["all", "folder", "out"]


def test_wrong_words_are_refused(ddp: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "there is no folder" in export(tmp_path / "none", "--to", out, code=1)
    assert "there is no whole snapshot in" in export(tmp_path, "--to", out, code=1)
    assert "no rank 7" in export(ddp, "--to", out, "--rank", "7", code=1)
    assert "goes as torch, dcp and safe" in export(ddp, "--to", out, "--format", "ckpt", code=1)
    assert "a rank, or all" in export(ddp, "--to", out, "--rank", "-1", code=2)
    assert "no folder" in export(ddp, "--to", tmp_path / "a" / "b", code=1)
    assert "--without NAME" in export("--help")
    assert not os.listdir(tmp_path)


# ---- Damage and strangers ------------------------------------------------------------------------


@pytest.fixture
def copy(ddp: Path, tmp_path: Path) -> Path:
    """A copy of a snapshot, to be changed."""
    return Path(shutil.copytree(whole(ddp)[0], tmp_path / "dir" / "a-1"))


@pytest.mark.parametrize("file", ["manifest.json", "rank-0.safetensors", "rank-1.safetensors"])
def test_a_changed_byte_anywhere_is_named_by_its_file(copy: Path, file: str) -> None:
    path = copy / file
    raw = bytearray(path.read_bytes())
    out = copy.parent / "out"
    for at in {9, len(raw) // 3, len(raw) // 2, len(raw) - 1}:
        raw[at] ^= 4
        path.write_bytes(raw)
        said = export(copy, "--to", out, "--rank", "all", code=1)
        assert f"{path} is damaged, or of no snapshot" in said
        raw[at] ^= 4
    path.write_bytes(raw[:-1])
    assert str(path) in export(copy, "--to", out, code=1)
    path.unlink()
    assert str(path if file != "manifest.json" else copy) in export(copy, "--to", out, code=1)
    assert os.listdir(copy.parent) == ["a-1"]


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def changed(edit: Callable[[dict[str, Any]], None]) -> Callable[[str, bytearray], None]:
    """Return what makes other objects of those of an image."""

    def change(name: str, content: bytearray) -> None:
        if not content.startswith(b"HFTORCH2"):
            return
        head = _head.read(memoryview(bytes(content)), b"HFTORCH2")
        objects = pickle.loads(head.objects)
        for unread in ("gradients", "ddp", "training", "requires_grad"):
            objects[unread] = None  # So that there is room.
        edit(objects)
        packed = pickle.dumps(objects)
        assert len(packed) <= len(head.objects)
        at = _head.BYTES + len(head.table)
        content[at : at + len(packed)] = packed

    return change


@pytest.mark.parametrize("where", ["scheduler", "vars", "average", "step"])
def test_what_a_stranger_would_have_run_is_refused_by_name(
    copy: Path, tmp_path: Path, where: str
) -> None:
    mark, out = tmp_path / "ran", tmp_path / "out.pt"
    evil = Evil(mark)

    def edit(objects: dict[str, Any]) -> None:
        if where == "scheduler":
            objects["others"]["scheduler"] = evil
        elif where == "vars":
            objects["vars"] = pickle.dumps({"best": evil})
        elif where == "average":
            objects["loose"]["adamw1", 0, "average"] = evil
            objects["others"]["scheduler"] = None  # So that there is room.
        else:
            objects["progress"] = evil

    forge(copy, 0, changed(edit))
    said = export(copy, "--to", out, code=1)
    assert str(copy / "rank-0.safetensors") in said and not out.exists()
    if where == "step":
        assert "its image makes no sense" in said
    else:
        name = "adamw1" if where == "average" else where
        assert f"`{name}` is, or holds, what `posix.system` makes" in said
        named = "optimizer" if where == "average" else where
        export(copy, "--to", out, "--without", named)
        found = torch.load(out, weights_only=True)
        assert named not in found and "model" in found
        export(copy, "--to", tmp_path / "out.safetensors", "--format", "safetensors")
    assert not mark.exists()


def test_plain_values_are_read_as_they_were() -> None:
    numpy = pytest.importorskip("numpy")
    import datetime
    import random

    value = {
        "a": [1, 2.5, True, None, "text", b"raw", 1 << 200, 2 + 1j],
        "b": (Counter("aab"), OrderedDict(x=1), deque([1, 2], 3), {1, 2}, frozenset((3,))),
        "c": datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc),
        "d": (torch.Size((2, 3)), torch.device("cpu"), torch.bfloat16),
        "e": (bytearray(b"abc"), datetime.timedelta(3), datetime.date(2026, 1, 2)),
        "f": random.Random(1).getstate(),
    }
    for protocol in (4, 5):
        assert plain(loads(pickle.dumps(value, protocol), "x"), "x") == value
        tensors = {
            "whole": torch.arange(6.0).view(2, 3),
            "turned": torch.arange(6).view(2, 3).t(),
            "half": torch.ones(3, dtype=torch.bfloat16),
            "none": torch.empty(0, 3),
            "parameter": torch.nn.Parameter(torch.ones(2)),
        }
        found = plain(loads(pickle.dumps(tensors, protocol), "x"), "x")
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
        arrays = [
            *(numpy.arange(6).reshape(2, 3), numpy.arange(6.0).reshape(2, 3).T, numpy.float32(2)),
            *(numpy.array(["ab", "c"]), numpy.zeros((0, 2)), numpy.array([True])),
            numpy.random.default_rng(1).bit_generator.state,
            numpy.arange(3, dtype=">i4"),
        ]
        found = plain(loads(pickle.dumps(arrays, protocol), "x"), "x")
        for one, other in zip(arrays, found):
            assert repr(one) == repr(other) and type(one) is type(other)


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(b"cos\nsystem\n(S'touch %s'\ntR.", id="reduce"),
        pytest.param(b"(S'touch %s'\nios\nsystem\n.", id="inst"),
        pytest.param(b"(cos\nsystem\nS'touch %s'\no.", id="obj"),
        pytest.param(b'cbuiltins\neval\n(S\'open("%s","w")\'\ntR.', id="eval"),
        pytest.param(
            b"cbuiltins\ngetattr\n(cos\n__dict__\nS'system'\ntR(S'touch %s'\ntR.", id="getattr"
        ),
        pytest.param(b"ccollections\nOrderedDict\n(tR}S'__reduce__'\ncos\nsystem\nsb.", id="build"),
        pytest.param(b"\x80\x04\x96\xff\xff\xff\xff\xff\x00\x00\x00.", id="large-bytearray"),
        pytest.param(b"cbuiltins\nset\n(cbuiltins\nrange\n(I99999999999\ntRtR.", id="endless"),
        pytest.param(b"\x80\x04" + b"]" + b"q\x00h\x00h\x00\x86" * 70 + b".", id="growing"),
        pytest.param(b"]q\x00h\x00a.", id="holds-itself"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_hostile_pickles_run_nothing(hostile: bytes, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    raw = hostile.replace(b"%s", str(mark).encode())
    try:
        found = plain(loads(raw, "x"), "x")
    except UserError as error:
        assert "x is" in str(error) or "x holds" in str(error)
    else:
        assert found in ({}, [], [[]]), found
    assert not mark.exists()


def test_a_hostile_storage_of_a_tensor_runs_nothing(tmp_path: Path) -> None:
    from torch.storage import _load_from_bytes

    mark = tmp_path / "ran"

    class Storage:
        def __reduce__(self) -> Any:
            packed = io.BytesIO()
            torch.save(Evil(mark), packed)
            return _load_from_bytes, (packed.getvalue(),)

    with pytest.raises(UserError, match="can not be unpickled"):
        loads(pickle.dumps({"a": Storage()}), "x")
    with pytest.raises(ValueError), warnings.catch_warnings():  # Beyond its storage.
        warnings.simplefilter("ignore")
        _safe._rebuilt(torch.ones(2).storage(), 1, (2,), (1,))
    assert not mark.exists()

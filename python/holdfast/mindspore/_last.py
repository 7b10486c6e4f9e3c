"""The dying gasp: MindSpore's own handlers write a last checkpoint, of a version that all have."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from holdfast import _core
from holdfast._errors import Error, MarkedError
from holdfast._say import say
from holdfast.mindspore._engine import Engine
from mindio_ttp._registry import registry

# MindSpore from 2.8 on writes the first name; the documents, and 2.7, have the second.
_NAME: Final = "ttp_saved_checkpoints-step_"
_OLD_NAME: Final = "tft_saved_checkpoints-step_"


def warm_up(place: _core.Place) -> None:
    """Write a small checkpoint and drop it, since a process's first checkpoint takes longer.

    In the gasp, that time would be a large part of the time in which a second fault may come.
    """
    import mindspore as ms

    if not place.directory:
        return
    path = Path(place.directory) / f"mindspore-warm-up-{place.rank}.ckpt"
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        thing = {"name": "x", "data": ms.Parameter(ms.Tensor([0.0]), name="x")}
        ms.save_checkpoint([thing], str(path), integrated_save=False, append_dict={"step_num": 0})
    path.unlink(missing_ok=True)


def gasp(engine: Engine, session: _core.Session, saves: bool) -> None:
    """End the job; if this rank `saves`, write the checkpoint first. Return only after a fault."""
    if not saves:
        with contextlib.suppress(MarkedError):
            session.world.barrier()  # Ends with the job, or by a fault.
        return
    if session.version == 0:
        raise engine.job.fail("a process was lost before the first step; there is nothing to save")
    try:
        where = save(engine.place)
    except Error:
        raise
    except Exception as error:
        raise engine.job.fail(
            f"a process was lost, and its last checkpoint could not be written: {error}"
        ) from error
    raise engine.job.fail(f"a process was lost; the state after its last step is in {where}")


def save(place: _core.Place) -> str:
    """Write the checkpoint; return words that say where it is."""
    if "save_ckpt" not in registry.handlers:
        raise Error(
            "the program has no TrainFaultTolerance (or TFTRegister) among its callbacks, which "
            "says where to"
        )
    step = registry.step
    callback = registry.handlers["save_ckpt"][1]
    path = getattr(callback, "ckpt_save_path", None)
    if hasattr(callback, "cur_step_num"):
        callback.cur_step_num = step  # Goes into the file; without this, initial_step is missing.
    if path is not None and not _clear(Path(path), step, place):
        # Another rank has written it, and was lost then.
        return _as_rank_0(Path(path) / f"{_NAME}{step}")
    with _quick_writer():
        registry.call("save_ckpt", step, [{"type": 1, "ranks": [place.rank]}], registry.args)
    registry.call("rename", step)
    if path is None:
        return "its ckpt_save_fn's file"
    old = Path(path) / f"{_OLD_NAME}{step}"
    if old.is_dir() and not old.is_symlink():
        old.rename(Path(path) / f"{_NAME}{step}")  # From 2.7; _link() gives it the old name, too.
    _note(place, step).touch(0o600)
    _link(Path(path), step)
    return _as_rank_0(Path(path) / f"{_NAME}{step}")


def _as_rank_0(folder: Path) -> str:
    """Let the file of another rank be found as rank 0's; return words that say where it is.

    The documents' scripts resume data parallel weights from rank 0's file, whoever was lost.
    """
    from mindspore import context

    alike = context.get_auto_parallel_context("parallel_mode") == "data_parallel"
    files = [file for file in sorted(folder.glob("rank_*/*.ckpt")) if not file.is_symlink()]
    if any(file.parent.name == "rank_0" for file in files):
        return str(folder)
    for file in files:
        rank = file.parent.name.removeprefix("rank_")
        if not alike:
            return (
                f"{folder}, and only rank {rank}'s: the parallel mode is not data_parallel, so "
                "rank 0 may have had another one"
            )
        link = folder / "rank_0" / file.name.replace(f"rank_{rank}-", "rank_0-", 1)
        try:
            link.parent.mkdir(exist_ok=True)
            with contextlib.suppress(FileExistsError):
                link.symlink_to(f"../{file.parent.name}/{file.name}")
        except OSError as error:  # As on a file system without links.
            return f"{folder}, as rank {rank}'s: rank 0 can not have a link to it ({error})"
    return str(folder)


@contextlib.contextmanager
def _quick_writer() -> Iterator[None]:
    """Let MindSpore write the values of a checkpoint straight from their memory; same bytes.

    Its own way (serialization.py:513) copies each value four times, by protobuf's Python classes.
    """
    from mindspore.train import serialization

    usual = serialization._write_parameter_bytes_data
    chunk = 1024 * serialization.SLICE_SIZE

    def write(
        name: str, value: Any, f: Any, enc_key: Any, plain: Any, crc: int = 0, *rest: Any
    ) -> Any:
        if enc_key is not None or any(rest):
            return usual(name, value, f, enc_key, plain, crc, *rest)
        content = memoryview(value[2].get_bytes())
        for at in range(0, len(content), chunk):
            part = content[at : at + chunk]
            f.write(frame(name, value[0], value[1], len(part)))
            f.write(part)
        return crc, 0

    serialization._write_parameter_bytes_data = write
    try:
        yield
    finally:
        serialization._write_parameter_bytes_data = usual


def frame(name: str, shape: Sequence[int], kind: str, size: int) -> bytes:
    """Return what stands before the `size` bytes of a value in a checkpoint (checkpoint.proto)."""
    tag, text = name.encode(), kind.encode()
    tensor = b"".join(b"\x08" + _number(length) for length in shape)
    tensor += b"\x12" + _number(len(text)) + text + b"\x1a" + _number(size)
    value = b"\x0a" + _number(len(tag)) + tag + b"\x12" + _number(len(tensor) + size)
    return b"\x0a" + _number(len(value) + len(tensor) + size) + value + tensor


def _number(value: int) -> bytes:
    """Return a number as protobuf writes it."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _note(place: _core.Place, step: int) -> Path:
    """Return the file that says that this job has written its checkpoint of a step."""
    return Path(place.directory) / f"mindspore-gasp-{place.run_id}-{step}"


def _clear(path: Path, step: int, place: _core.Place) -> bool:
    """Make way for the checkpoint of a step; return False if this job has written it already."""
    if _note(place, step).exists() and (path / f"{_NAME}{step}").exists():
        return False
    for folder in (path / f"{_OLD_NAME}{step}", path / f"{_NAME}{step}"):
        shutil.rmtree(path / f"{folder.name}_tmp", ignore_errors=True)
        if folder.is_symlink():
            folder.unlink()  # Else 2.7 could not use this name for its folder.
        elif folder.exists():
            aside = next(
                name
                for name in (path / f"{folder.name}.earlier-{i}" for i in itertools.count(1))
                if not os.path.lexists(name)
            )
            folder.rename(aside)
            say(f"{folder} is of an earlier job; it is moved to {aside}")
    return True


def _link(path: Path, step: int) -> str:
    with contextlib.suppress(FileExistsError):
        os.symlink(f"{_NAME}{step}", path / f"{_OLD_NAME}{step}")
    return str(path / f"{_NAME}{step}")


def save_image(values: dict[str, Any], objects: dict[str, Any], place: _core.Place) -> str:
    """Write the checkpoint if no process of the training is left; return a sentence about it.

    `values`: of the parameters, by their names; `objects`: what else the state holds.
    """
    where: dict[str, Any] | None = objects.get("gasp")
    if where is None:
        return "all processes were lost, and no callback says where to save their state"
    for name in ("MS_ROLE", "MS_SCHED_HOST", "MS_SCHED_PORT"):
        os.environ.pop(name, None)
    import mindspore as ms

    epoch, batches = objects["epoch"] + 1, objects["batch_num"]
    path = Path(where["path"])
    step = objects["step"] + where["initial_step"]
    folder = path / f"{_NAME}{step}_tmp" / f"rank_{place.rank}"
    file = folder / f"ttp_rank_{place.rank}-{epoch}_{(step - 1) % batches + 1}.ckpt"
    things = [{"name": name, "data": ms.Tensor(value)} for name, value in values.items()]
    append = {"epoch_num": epoch, "step_num": step, "cur_rank": place.rank, "batch_num": batches}
    try:
        if _clear(path, step, place):
            folder.mkdir(parents=True)
            ms.save_checkpoint(things, str(file), integrated_save=False, append_dict=append)
            folder.parent.rename(path / f"{_NAME}{step}")
            _note(place, step).touch(0o600)
        said = _link(path, step)
    except (OSError, RuntimeError, ValueError) as error:
        return f"all processes were lost, and their last checkpoint could not be written: {error}"
    return f"all processes were lost; the state after their last step is in {said}"

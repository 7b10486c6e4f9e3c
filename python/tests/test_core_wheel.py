"""The wheel, in a virtual environment that has nothing else: no framework, not even pip.

HOLDFAST_TEST_WHEEL names one that tools/wheel has made; else one is built as by `pip install .`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from commands import run

from holdfast._launch import free_port

ROOT = Path(__file__).parents[2]
MADE = os.environ.get("HOLDFAST_TEST_WHEEL")
TRAINER = Path(__file__).with_name("trainer_core.py")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as `pip install .` does, but with this Python's scikit-build-core."""
    if MADE:
        return Path(MADE).resolve()
    folder = tmp_path_factory.mktemp("wheel")
    run(
        *(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"),
        # Beside the other builds, so that ccache finds the same sources under the same names.
        *(f"--config-settings=build-dir={ROOT / 'build' / 'wheel'}", "-w", str(folder), str(ROOT)),
        folder=folder,
        CXX="c++",  # CMake's default. Python would name another compiler.
        CCACHE_BASEDIR=str(ROOT),
        CCACHE_NOHASHDIR="true",
        CCACHE_SLOPPINESS="pch_defines,time_macros",
    )
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of an environment that has the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    run(sys.executable, "-m", "venv", "--without-pip", "venv", folder=folder)
    pip = (sys.executable, "-m", "pip", "-q", "--python", "venv/bin/python", "install")
    run(*pip, "--no-index", "--no-deps", str(wheel), folder=folder)
    return folder / "venv" / "bin"


def test_core_the_wheel_holds_what_it_needs_and_nothing_of_the_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = "py.typed lib/libholdfast.so bin/msrun bin/holdfast include/holdfast/c.h _shim.sh"
    wanted += " bin/nursling lib/libholdfast_mindspore.so"
    assert {f"holdfast/{name}" for name in wanted.split()} <= names
    assert "mindio_ttp/py.typed" in names
    assert not any("test" in name for name in names), names
    assert wheel.name.endswith(".whl") and "-py3-none-" in wheel.name


@pytest.mark.skipif(not MADE, reason="of a wheel of tools/wheel")
def test_core_a_wheel_for_all_needs_libc_alone_and_shows_its_c_interface(bare: Path) -> None:
    (package,) = bare.parent.glob("lib/python*/site-packages/holdfast")
    own = re.compile(r"lib(holdfast|c|m|dl|pthread|rt)\.so(\.\d)?|ld-linux-.*")
    for path in (*package.glob("lib/*.so"), *package.glob("bin/*")):
        said = run("readelf", "-dW", "--dyn-syms", str(path), folder=package)
        assert all(own.fullmatch(name) for name in re.findall(r"\(NEEDED\).*\[(.*)\]", said)), said
        assert all(int(minor) <= 28 for minor in re.findall(r"@GLIBC_2\.(\d+)", said)), path
        shown = re.findall(r" (?:GLOBAL|WEAK) +DEFAULT +\d+ (\S+)", said)
        assert all(name.startswith(("hf_", "hfg_")) for name in shown), (path, shown)


@pytest.mark.skipif(not MADE, reason="of a wheel of tools/wheel")
def test_core_a_wheel_for_all_says_that_it_serves_no_page(bare: Path, tmp_path: Path) -> None:
    said = run(str(bare / "holdfast"), "serve", folder=tmp_path, code=2)
    assert "`serve` is not in this wheel" in said


def test_core_the_wheel_needs_no_framework(bare: Path, tmp_path: Path) -> None:
    code = (
        "import importlib.util, sys, holdfast\n"
        "assert not importlib.util.find_spec('torch') and not importlib.util.find_spec('numpy')\n"
        "try:\n    import holdfast.torch\n"
        "except ImportError as error:\n    print(error)\n"
        "print(holdfast.__file__)\n"
    )
    said = run(str(bare / "python"), "-c", code, folder=tmp_path).splitlines()
    assert said[0].startswith("holdfast.torch needs PyTorch, which is not installed here; pip")
    assert Path(said[1]).is_relative_to(bare.parent)


def test_core_the_wheels_command_is_whole(bare: Path, tmp_path: Path) -> None:
    command = str(bare / "holdfast")
    text = run(command, "--help", folder=tmp_path)
    commands = ("run ", "msrun ", "status ", "clean ", "settings ", "tls ", "env ")
    assert all(f"\n  {word}" in text for word in commands)
    programs = Path(run(command, "env", folder=tmp_path).strip())
    assert programs.is_relative_to(bare.parent)
    assert all(os.access(programs / name, os.X_OK) for name in ("msrun", "holdfast"))
    assert "HOLDFAST_TRACE" in run(command, "settings", folder=tmp_path)
    assert "0.1.0" in run(command, "--version", folder=tmp_path)


@pytest.mark.parametrize("how", ["run", "msrun"])
def test_core_the_wheel_runs_a_job_of_two_workers(bare: Path, tmp_path: Path, how: str) -> None:
    options = {
        "run": ("--nproc-per-node=2", "--log-dir=log"),
        "msrun": (
            *("--worker_num=2", "--local_worker_num=2", "--log_dir=log", "--join=True"),
            *(f"--master_port={free_port()}", str(bare / "python")),
        ),
    }[how]
    trainer = (str(TRAINER), "--steps", "20", "--out", str(tmp_path))
    run(str(bare / "holdfast"), how, *options, *trainer, folder=tmp_path)
    assert {path.name for path in tmp_path.glob("rank-*")} == {"rank-0", "rank-1"}


def test_core_mypy_reads_the_types_of_the_installed_package(bare: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import holdfast\nreveal_type(holdfast.init().world_size)\nholdfast.Step(loss='low')\n"
    )
    options = ("--strict", "--python-executable", str(bare / "python"), "--cache-dir", "cache")
    said = run(sys.executable, "-m", "mypy", *options, str(program), folder=tmp_path, code=1)
    assert 'Revealed type is "int"' in said
    assert 'has incompatible type "str"; expected "float"' in said
    assert "Found 1 error" in said


def test_core_a_library_that_can_not_be_loaded_is_said_in_one_sentence(
    bare: Path, tmp_path: Path
) -> None:
    package = Path(run(str(bare / "holdfast"), "env", folder=tmp_path).strip()).parent
    shutil.copytree(package, tmp_path / "holdfast")
    (tmp_path / "holdfast" / "lib" / "libholdfast.so").write_bytes(b"")
    said = run(str(bare / "python"), "-c", "import holdfast", folder=tmp_path, code=1)
    assert "libholdfast.so can not be loaded (" in said.splitlines()[-1]
    assert "libsqlite3-0" in said.splitlines()[-1]


def test_core_what_is_missing_to_build_is_named_at_once(tmp_path: Path) -> None:
    nowhere = "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF"  # As if /usr/include were empty.
    options = ["-G", "Ninja", "-S", str(ROOT), "-B", str(tmp_path), "-DHOLDFAST_TESTS=OFF", nowhere]
    said = " ".join(run("cmake", *options, folder=tmp_path, code=1).split())
    assert "Holdfast can not be built: there are missing here" in said
    packages = ("libasio-dev", "nlohmann-json3-dev", "libsqlite3-dev", "libcli11-dev", "libssl-dev")
    for package in packages:
        assert package in said
    assert "libgtest-dev" not in said  # The wheel is built without tests.
    assert "`tools/install` installs them" in said


@pytest.mark.skipif(not MADE, reason="only tools/wheel makes the archive for C")
def test_core_a_c_program_is_built_with_the_archive_and_runs_under_its_msrun(
    wheel: Path, tmp_path: Path
) -> None:
    (archive,) = wheel.parent.glob(f"libholdfast-*-linux-{os.uname().machine}.tar.gz")
    run("tar", "xzf", str(archive), folder=tmp_path)
    (there,) = tmp_path.glob("libholdfast-*")
    library = ("-L", str(there / "lib"), "-lholdfast", f"-Wl,-rpath,{there / 'lib'}")
    source = str(ROOT / "capi" / "testing" / "solo.c")
    run("cc", "-I", str(there / "include"), source, "-o", "solo", *library, folder=tmp_path)
    run("./solo", folder=tmp_path)
    msrun = (str(there / "bin" / "msrun"), "--worker_num=1", "--join=True", "--log_dir=log")
    run(*msrun, f"--master_port={free_port()}", "./solo", folder=tmp_path)
    assert "ok" in run(str(there / "bin" / "holdfast"), "doctor", folder=tmp_path)

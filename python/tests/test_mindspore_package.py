"""mindio_ttp's functions without a job; the launcher's options; MindSpore's files are unchanged."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import _core
from holdfast.mindspore import _last, _launch
from mindio_ttp import _switches, controller_ttp
from mindio_ttp import framework_ttp as tft
from mindio_ttp._registry import registry


def test_mindspore_s_installed_files_are_those_of_its_wheel() -> None:
    try:
        package = importlib.metadata.distribution("mindspore")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("MindSpore is not in this Python; tools/mindspore_venv")
    record = package.read_text("RECORD")
    assert record is not None
    checked = 0
    for name, digest, _ in csv.reader(record.splitlines()):
        path = Path(str(package.locate_file(name)))
        # Reading large libraries takes long, and no test could change them.
        if not digest or path.suffix != ".py":
            continue
        kind, expected = digest.split("=", 1)
        found = hashlib.new(kind, path.read_bytes()).digest()
        assert base64.urlsafe_b64encode(found).rstrip(b"=").decode() == expected, name
        checked += 1
    assert checked > 1000


def test_mindspore_every_function_of_mindio_works_or_says_why_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tft.tft_init_controller(0, 2, False, enable_arf=True) == 0
    assert tft.tft_start_controller("127.0.0.1", 30051, False, "") == 0
    assert tft.tft_init_processor(0, 2, False, False, "", enable_arf=True) == 0
    assert tft.tft_start_processor("127.0.0.1", 30051) == 0
    assert "no Holdfast job" in capsys.readouterr().err
    replica = {"type": 1, "rank_list": [0, 1], "replica_cnt": 2, "replica_shift": 0}
    assert tft.tft_set_optimizer_replica(0, [replica]) == 0
    assert tft.tft_start_updating_os(-1) == 0 and registry.updating
    assert tft.tft_end_updating_os(3) == 0 and registry.step == 3
    assert tft.tft_get_repair_step() == 3
    assert not tft.tft_is_reboot_node() and not tft.tft_can_do_uce_repair(1, 2, 3)
    assert tft.tft_report_error(tft.ReportState.RS_UCE.value) == 0
    assert tft.tft_wait_next_action() == tft.Action.EXIT.value  # No actor is there to repair.
    assert tft.tft_get_repair_type() == "dump"
    names = [name for name in dir(tft) if name.startswith("tft_register_") and "mindx" not in name]
    assert len(names) == 14
    for name in names:
        assert getattr(tft, name)(print, None) == 0
    assert controller_ttp.tft_register_mindx_callback("report_strategies", print) == 0
    assert controller_ttp.tft_notify_controller_change_strategy("dump") == 0
    assert "decides by itself" in capsys.readouterr().err
    assert tft.tft_destroy_controller() == tft.tft_destroy_processor() == 0
    assert not registry.handlers


@pytest.mark.parametrize(
    "call",
    [
        lambda: tft.tft_init_controller(2, 2, False),
        lambda: tft.tft_start_controller("0.0.0.0", 30051),
        lambda: tft.tft_start_controller("127.0.0.1", 80),
        lambda: tft.tft_end_updating_os(0),
        lambda: tft.tft_set_optimizer_replica(0, [{"type": 1}]),
        lambda: controller_ttp.tft_register_mindx_callback("what", print),
    ],
)
def test_mindspore_mindio_refuses_what_mindio_refuses(call: object) -> None:
    with pytest.raises(ValueError):
        call()  # type: ignore[operator]


def test_mindspore_a_training_function_is_made_again_after_a_repair() -> None:
    class Repairs:
        def repair(self) -> bool:
            return True

        def step(self) -> int:
            return 7

        def restarted(self) -> bool:
            return False

    calls = []

    @tft.tft_exception_handler
    def train() -> int:
        calls.append(len(calls))
        if len(calls) == 1:
            raise RuntimeError("UCEError occurs")
        return tft.tft_get_repair_step()

    registry.actor = Repairs()
    try:
        assert train() == 7
    finally:
        registry.actor = None
    assert calls == [0, 1]


def test_mindspore_msrun_takes_mindspore_s_options() -> None:
    words = "--worker_num 4 --join=False --cluster_time_out=300 case.py --join 1"
    arguments = _launch._arguments(words.split(), {"MS_ENABLE_TFT": "{TTP:1}"})
    assert arguments[:5] == [
        *("--worker_num=4", "--join=False", "--cluster_time_out=300", "--spares=2", "--")
    ]
    assert arguments[-3:] == ["case.py", "--join", "1"]
    assert _launch._arguments(["--worker_num=2", "./program"], {}) == [
        *("--worker_num=2", "--", "./program")
    ]


@pytest.mark.parametrize(
    ("switches", "expected"),
    [("{TTP:1}", True), ("{UCE:1 TTP:1}", True), ("{TTP:1,UCE:1,ARF:1}", False), ("", False)],
)
def test_mindspore_switches_say_whether_a_lost_process_ends_the_job(
    switches: str, expected: bool
) -> None:
    assert _switches.gasp({"MS_ENABLE_TFT": switches}) is expected


@pytest.mark.parametrize(
    ("given", "kept", "remarks"),
    [
        ("{UCE:1 TTP:1}", "{TTP:1,UCE:1}", 0),
        ("TTP: 1", "{TTP:1}", 0),
        ("{ARF:1, UCE:1, TTP:1}", "{TTP:1,UCE:1,ARF:1}", 0),
        ("{HCCE:1,TTP:0}", "{HCCE:1}", 0),
        ("{TTP:1,TSP:1,RSC:1,TRE:2}", "{TTP:1}", 3),
        ("{ATO:1}", "", 1),
        ("{}", "", 0),
    ],
)
def test_mindspore_each_name_of_the_documents_is_a_switch_or_explained(
    given: str, kept: str, remarks: int
) -> None:
    variables = {"MS_ENABLE_TFT": given}
    said = _switches.settle(variables)
    assert (variables["MS_ENABLE_TFT"], len(said)) == (kept, remarks)
    assert all("MS_ENABLE_TFT asks for" in line and "not there" in line for line in said)


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("MS_ENABLE_TFT", "{BOGUS}", "'BOGUS' is no switch"),
        ("MS_ENABLE_TFT", "{TTP}", "TTP has no value"),
        ("MS_ENABLE_TFT", "{TTP:10}", "TTP is '10'"),
        ("MS_ENABLE_TFT", "{ttp:1}", "'ttp' is no switch"),
        ("MS_ENABLE_TFT", "{TTP:1", "one of its braces is missing"),
        ("MS_ENABLE_TFT", "1", "'1' is no switch"),
        ("MS_ENABLE_TFT", "{TTP:1,UCE:0,TTP:0}", "TTP is there twice"),
        ("MS_TFT_PORT", "abc", "unset it"),
    ],
)
def test_mindspore_a_switch_that_means_nothing_is_named_before_anything_starts(
    variable: str, value: str, why: str
) -> None:
    command = [sys.executable, "-m", "holdfast.mindspore", "msrun", "--worker_num=1", "no.py"]
    for words in (command, [sys.executable, "-c", "import mindspore"]):
        found = subprocess.run(
            words,
            env=_launch.environment({**os.environ, variable: value}),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert found.returncode == (2 if words is command else 1), found.stderr
        (line,) = found.stderr.splitlines()
        assert line.startswith(f"holdfast: {variable} is '{value}'"), line
        assert why in line and "expected is" in line, line


def test_mindspore_a_last_checkpoint_does_not_take_an_earlier_job_s_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "run").mkdir()
    place = _core.Place(0, 2, 7, 1, "", str(tmp_path / "run"), "job")
    folder = tmp_path / "ttp_saved_checkpoints-step_12"
    for i in (1, 2):
        folder.mkdir()
        (folder / "old").write_text(str(i))
        assert _last._clear(tmp_path, 12, place)
        assert not folder.exists()
        assert (tmp_path / f"{folder.name}.earlier-{i}" / "old").read_text() == str(i)
    assert _last._clear(tmp_path, 12, place)
    folder.mkdir()
    _last._note(place, 12).touch()  # This job has written it: the next save keeps it.
    assert not _last._clear(tmp_path, 12, place)
    assert folder.exists()

"""The options of `holdfast run` for several hosts: what they mean, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast._core import Place
from holdfast._options import Run, parse
from holdfast.job import publish

OTHER = "192.0.2.1"  # No host has this address: it is reserved for documents.
MEET = "--rdzv-endpoint=127.0.0.1:4000"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PET_"):
            monkeypatch.delenv(name)


def parsed(*options: str) -> Run:
    return parse([*options, str(Path(__file__))])


def where(run: Run) -> tuple[int, int, str, int]:
    return run.nodes.count, run.nodes.rank, run.nodes.address, run.nodes.port


@pytest.mark.parametrize(
    ("options", "address", "port", "master"),
    [
        (["--rdzv-endpoint=10.0.0.1:4000"], "10.0.0.1", 4000, ("10.0.0.1", 4001)),
        (["--rdzv_endpoint=10.0.0.1"], "10.0.0.1", 29400, ("10.0.0.1", 29401)),
        (["--rdzv-endpoint=[fd00::1]:4000"], "fd00::1", 4000, ("fd00::1", 4001)),
        (["--rdzv-endpoint=[fd00::1]"], "fd00::1", 29400, ("fd00::1", 29401)),
        (["--rdzv-endpoint=fd00::1"], "fd00::1", 29400, ("fd00::1", 29401)),
        (["--rdzv-endpoint=10.0.0.1:65535"], "10.0.0.1", 65535, ("10.0.0.1", 65534)),
        (
            ["--rdzv-endpoint=10.0.0.1:4000", "--master-addr=x.org", "--master-port=7"],
            "10.0.0.1",
            4000,
            ("x.org", 7),
        ),
        (["--master-addr=10.0.0.1"], "10.0.0.1", 29500, ("10.0.0.1", 29501)),
        (["--master-addr=10.0.0.1", "--master-port=7"], "10.0.0.1", 7, ("10.0.0.1", 8)),
    ],
)
def test_core_where_the_hosts_meet(
    options: list[str], address: str, port: int, master: tuple[str, int]
) -> None:
    run = parsed("--nnodes=3", "--node-rank=1", "--nproc-per-node=4", *options)
    assert where(run) == (3, 1, address, port)
    assert (run.master_addr, run.master_port) == master
    assert (run.count, run.world_size, run.sched_port) == (4, 12, port)
    assert set(run.streams.shown) == {4, 5, 6, 7}


def test_core_hosts_may_be_unequal() -> None:
    options = ("--nnodes=3:4", "--nproc-per-node=4,2,1", MEET)
    runs = [parsed(*options, f"--node-rank={rank}") for rank in range(4)]
    assert [run.count for run in runs] == [4, 2, 1, 4]
    assert {run.world_size for run in runs} == {7}
    assert [set(run.streams.shown) for run in runs] == [{0, 1, 2, 3}, {4, 5}, {6}, set(range(7))]


def test_core_a_local_rank_is_shown_by_its_filter() -> None:
    options = ("--nnodes=2", "--node-rank=1", "--nproc-per-node=2", "--local-ranks-filter=1")
    assert set(parsed(*options, MEET).streams.shown) == {3}


def test_core_variables_stand_for_options_as_in_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PET_NNODES": "2:2",
        "PET_NODE_RANK": "1",
        "PET_RDZV_ENDPOINT": "10.0.0.1:4000",
        "PET_NPROC_PER_NODE": "2",
    }.items():
        monkeypatch.setenv(name, value)
    run = parsed()
    assert where(run) == (2, 1, "10.0.0.1", 4000)
    assert run.world_size == 4
    assert where(parsed("--node-rank=0", MEET)) == (2, 0, "127.0.0.1", 4000)


def test_core_of_two_hosts_the_one_that_has_not_the_address_is_the_second() -> None:
    run = parsed("--nnodes=2", f"--rdzv-endpoint={OTHER}:4000", "--rdzv-backend=c10d")
    assert run.nodes.rank == 1
    assert run.remarks == (
        f"this host is node 1 of 2: it does not have the address {OTHER}",
        "--rdzv-backend: without effect, since the job's own scheduler is where its processes meet",
    )


def test_core_hosts_beyond_the_least_number_are_spare_hosts() -> None:
    held = parsed("--nnodes=2:3", "--node-rank=1", "--nproc-per-node=2", MEET)
    spare = parsed("--nnodes=2:3", "--node-rank=2", "--nproc-per-node=2", MEET)
    assert (held.nodes.is_spare, spare.nodes.is_spare) == (False, True)
    assert held.world_size == spare.world_size == 4
    assert (set(held.streams.shown), set(spare.streams.shown)) == ({2, 3}, {0, 1, 2, 3})
    alone = parsed("--nnodes=1:2", "--node-rank=0", MEET)
    assert (alone.nodes.several, alone.world_size) == (True, 1)


def test_core_one_host_is_as_it_was() -> None:
    run = parsed("--nnodes=1:1", "--node-rank=0", "--rdzv-endpoint=a:b:c")
    assert where(run) == (1, 0, "127.0.0.1", 0)
    assert (run.master_addr, run.master_port, run.world_size) == ("127.0.0.1", 0, 1)
    assert run.remarks == ("--rdzv-endpoint: without effect on one host",)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--nnodes=0"], "--nnodes is '0'; allowed is a whole number of hosts from 1, or MIN:MAX"),
        (["--nnodes=2:1", MEET], "--nnodes is '2:1'"),
        (["--nnodes=two", MEET], "--nnodes is 'two'"),
        (["--node-rank=1"], "--node-rank is 1, but --nnodes is 1"),
        (["--nnodes=2", "--node-rank=0"], "give all of them the same --rdzv-endpoint HOST:PORT"),
        (["--nnodes=2", "--node-rank=2", MEET], "with --nnodes=2, allowed is 0 to 1"),
        (["--nnodes=2", "--node-rank=-1", MEET], "--node-rank is '-1'"),
        (["--nnodes=2", MEET], "--node-rank is missing: give each host its own, from 0 to 1"),
        (["--nnodes=3", f"--rdzv-endpoint={OTHER}"], "--node-rank is missing"),
        (["--nnodes=2", "--rdzv-endpoint=a b"], "it has to be HOST:PORT"),
        (["--nnodes=2", "--rdzv-endpoint=0.0.0.0:4000"], "it has to be HOST:PORT"),
        (["--nnodes=2", "--rdzv-endpoint=10.0.0.1:0"], "the port in --rdzv-endpoint is '0'"),
        (["--nnodes=2", "--rdzv-endpoint=10.0.0.1:65536"], "is '65536'"),
        (["--nnodes=2", "--node-rank=1", "--sched-port=1", MEET], "leave --sched-port out"),
        (["--nnodes=2", "--node-rank=1", "--master-port=4000", MEET], "are both 4000"),
        (["--nnodes=2", "--standalone", MEET], "--standalone means one host"),
        (["--nnodes=2", "--node-rank=1", "--nproc-per-node=4,2,1", MEET], "which are 3 hosts, but"),
        (["--nnodes=2", "--node-rank=1", "--nproc-per-node=4,0", MEET], "is '4,0'; allowed is"),
        (["--nnodes=6000", "--node-rank=1", "--nproc-per-node=2", MEET], "12000 processes; 10000"),
    ],
)
def test_core_what_is_wrong_with_the_hosts_is_said(
    capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*options)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.startswith("holdfast: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("launched", "sizes", "local"),
    [(True, "4", "1"), (True, "2 4 2", "3"), (True, "5 3", "0"), (False, "4", "3")],
)
def test_core_a_spare_learns_its_local_rank_with_its_rank(
    monkeypatch: pytest.MonkeyPatch, launched: bool, sizes: str, local: str
) -> None:
    environment = {"GROUP_RANK": "3", "LOCAL_WORLD_SIZE": "4", "_HOLDFAST_SIZES": sizes}
    if launched:
        environment["_HOLDFAST_RESTART_TOKEN"] = "x"
    monkeypatch.setattr(os, "environ", environment)
    publish(Place(5, 8, 1, 1, "5", "/nowhere", "job"), local_rank=3)
    assert (environment["RANK"], environment["LOCAL_RANK"]) == ("5", local)


def test_core_a_name_that_is_only_a_loopback_address_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_in_many_etc_hosts(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(2, 2, 17, "", ("127.0.1.1", 0))]

    monkeypatch.setattr("socket.getaddrinfo", as_in_many_etc_hosts)
    with pytest.raises(SystemExit):
        parsed("--nnodes=2", "--node-rank=0", "--rdzv-endpoint=node-a:4000")
    assert "node-a is 127.0.1.1 on this host (see /etc/hosts)" in capsys.readouterr().err

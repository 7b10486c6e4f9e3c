"""Do every collective with every type on Gloo and on holdfast, and compare, in each rank.

Argument: a folder that all ranks share. Each writes what differs into `result-<rank>` there.
"""

import json
import sys
import warnings
from typing import Any

import holdfast

job = holdfast.init()  # The scheduler serves in here, and never imports torch.

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402

import holdfast.torch  # noqa: E402

TYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
]
OPERATIONS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]


def made(dtype: torch.dtype, *shape: int, salt: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * dist.get_rank() + salt)
    return torch.randint(0, 5, shape, generator=generator).to(dtype)


def reductions(dtype: torch.dtype, op: Any) -> dict[str, Any]:
    n, rank = dist.get_world_size(), dist.get_rank()

    def all_reduce() -> Any:
        t = made(dtype, 3, 5)
        dist.all_reduce(t, op)
        return t

    def reduce() -> Any:
        t = made(dtype, 7)
        dist.reduce(t, n - 1, op)
        return t if rank == n - 1 else None

    def reduce_scatter() -> Any:
        out = torch.zeros(4, dtype=dtype)
        dist.reduce_scatter(out, [made(dtype, 4, salt=k) for k in range(n)], op)
        return out

    def reduce_scatter_tensor() -> Any:
        out = torch.zeros(4, dtype=dtype)
        dist.reduce_scatter_tensor(out, made(dtype, n * 4), op)
        return out

    return {f.__name__: f for f in (all_reduce, reduce, reduce_scatter, reduce_scatter_tensor)}


def copies(dtype: torch.dtype) -> dict[str, Any]:
    n, rank = dist.get_world_size(), dist.get_rank()

    def broadcast() -> Any:
        t = made(dtype, 6)
        dist.broadcast(t, n - 1)
        return t

    def all_gather() -> Any:
        out = [torch.zeros(2, 3, dtype=dtype) for _ in range(n)]
        dist.all_gather(out, made(dtype, 2, 3))
        return out

    def all_gather_into_tensor() -> Any:
        out = torch.zeros(n * 2, 3, dtype=dtype)
        dist.all_gather_into_tensor(out, made(dtype, 2, 3))
        return out

    def gather() -> Any:
        out = [torch.zeros(4, dtype=dtype) for _ in range(n)] if rank == 0 else None
        dist.gather(made(dtype, 4), out, 0)
        return out

    def scatter() -> Any:
        out = torch.zeros(4, dtype=dtype)
        parts = [made(dtype, 4, salt=k) for k in range(n)] if rank == n - 1 else None
        dist.scatter(out, parts, n - 1)
        return out

    def all_to_all_single() -> Any:
        out = torch.zeros(n * 2, dtype=dtype)
        dist.all_to_all_single(out, made(dtype, n * 2))
        return out

    def all_to_all_with_splits() -> Any:
        out = torch.zeros(n * (rank + 1), 2, dtype=dtype)
        rows = [r + 1 for r in range(n)]
        dist.all_to_all_single(out, made(dtype, sum(rows), 2), [rank + 1] * n, rows)
        return out

    def send_and_receive() -> Any:
        if n == 1:
            return None
        to, source = (rank + 1) % n, (rank - 1) % n
        plain, first, second = (torch.zeros(5, dtype=dtype) for _ in range(3))
        works = [dist.isend(made(dtype, 5), to)]
        works += [dist.isend(made(dtype, 5, salt=tag), to, tag=tag) for tag in (1, 2)]
        works += [dist.irecv(second, source, tag=2), dist.irecv(first, source, tag=1)]
        works += [dist.irecv(plain, source)]
        for work in works:
            work.wait()
        return [plain, first, second]

    def coalesced() -> Any:
        tensors = [made(dtype, 3), made(dtype, 2, 2, salt=1)]
        dist.all_reduce_coalesced(tensors)
        return tensors

    found = (broadcast, all_gather, all_gather_into_tensor, gather, scatter, all_to_all_single)
    return {f.__name__: f for f in (*found, all_to_all_with_splits, send_and_receive, coalesced)}


def others() -> dict[str, Any]:
    n, rank = dist.get_world_size(), dist.get_rank()
    world = dist.group.WORLD

    def subgroup() -> Any:
        members = sorted({0, n - 1})
        group = dist.new_group(members)
        t = torch.tensor([rank + 1.0])
        if rank in members:
            dist.all_reduce(t, group=group)
            dist.broadcast(t, n - 1, group=group)
        return t

    def objects() -> Any:
        gathered: list[Any] = [None] * n
        dist.all_gather_object(gathered, {"rank": rank})
        sent = [rank, "x"]
        dist.broadcast_object_list(sent, 0)
        return gathered, sent

    def future() -> Any:
        future = dist.all_reduce(torch.ones(3) * rank, async_op=True).get_future()
        future.wait()
        return future.value()[0]

    def nothing() -> Any:
        t = torch.empty(0)
        dist.all_reduce(t)
        dist.barrier()
        return t

    def large() -> Any:
        t = made(torch.float32, 300_000)
        dist.all_reduce(t)
        return t

    def whole_average() -> Any:
        t, out = made(torch.int64, 5) - 3, torch.zeros(4, dtype=torch.int32)
        many = made(torch.int32, n * 4) - 3
        is_usual = dist.get_backend() == "gloo"  # Gloo has no average of whole numbers.
        op = dist.ReduceOp.SUM if is_usual else dist.ReduceOp.AVG
        dist.all_reduce(t, op)
        dist.reduce_scatter_tensor(out, many, op)
        return [torch.div(x, n, rounding_mode="trunc") if is_usual else x for x in (t, out)]

    def batch() -> Any:
        if n == 1:
            return None
        out = torch.zeros(4)
        sent = dist.P2POp(dist.isend, torch.full((4,), float(rank)), (rank + 1) % n)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, out, (rank - 1) % n), sent]):
            work.wait()
        return out

    def functional_forms() -> Any:
        ones, many = torch.ones(3) * rank, torch.ones(3 * n) * rank
        return [
            functional.all_reduce(ones, "sum", world) + 0,
            functional.all_gather_tensor(ones, 0, world) + 0,
            functional.reduce_scatter_tensor(many, "sum", 0, world) + 0,
            functional.all_to_all_single(many, [3] * n, [3] * n, world) + 0,
        ]

    found = (subgroup, objects, future, nothing, large, whole_average, batch, functional_forms)
    return {f.__name__: f for f in found}


def everything() -> dict[str, Any]:
    results: dict[str, Any] = {}

    def note(name: str, cases: dict[str, Any]) -> None:
        for case, call in cases.items():
            try:
                results[f"{case} {name}"] = call()
            except Exception as error:
                results[f"{case} {name}"] = error

    for dtype in TYPES:
        for op in OPERATIONS:
            note(f"{dtype} {op}", reductions(dtype, getattr(dist.ReduceOp, op)))
        note(f"{dtype}", copies(dtype))
    note("", others())
    return results


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.dtype in (torch.float16, torch.bfloat16):  # Gloo rounds after each addition.
            return a.dtype == b.dtype and torch.allclose(a.float(), b.float(), rtol=1e-2)
        if a.is_complex():  # Gloo's average divides by a complex number.
            return a.dtype == b.dtype and torch.allclose(a, b, rtol=1e-6)
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


def main(folder: str) -> None:
    torch.set_num_threads(1)
    place = job.place
    store = dist.FileStore(f"{folder}/store", place.world_size)
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.world_size)
    usual = everything()
    dist.destroy_process_group()
    dist.init_process_group("holdfast")
    ours = everything()
    compared, different = 0, []
    for name, expected in usual.items():
        if isinstance(expected, Exception):
            continue  # Gloo does not offer it, so there is nothing to compare.
        compared += 1
        if not equal(expected, ours[name]):
            different.append(f"{name}: gloo {expected}, holdfast {ours[name]!r}")
    with open(f"{folder}/result-{place.rank}", "w") as file:
        json.dump({"compared": compared, "different": different}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[2])

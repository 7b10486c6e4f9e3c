"""Makes every collective with every type and operation, and compares with a sum made here.

Any rank can compute what any other rank puts in, so each checks its own outputs. Exits with 1 if an
output differs.
"""

from __future__ import annotations

import functools
import random
import struct
from array import array
from collections.abc import Callable
from typing import Union

import holdfast
from holdfast import DType, Group, Op

Number = Union[int, float]
CODES = {
    DType.FLOAT32: "f",
    DType.FLOAT64: "d",
    DType.INT32: "i",
    DType.INT64: "q",
    DType.FLOAT16: "e",
    DType.INT8: "b",
    DType.UINT8: "B",
    DType.INT16: "h",
    DType.BOOL: "?",
}
FLOATS = {DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16}
COUNTS = (0, 1, 65)
LARGE = 270_001  # Elements: more than one piece, and no whole number of cache lines.


def bfloat16_bits(value: float) -> int:
    """Round to the nearest, ties to even."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def pack(values: list[Number], dtype: DType) -> bytearray:
    """Return the values as they are in memory."""
    if dtype == DType.BFLOAT16:
        return bytearray(struct.pack(f"<{len(values)}H", *map(bfloat16_bits, values)))
    return bytearray(struct.pack(f"<{len(values)}{CODES[dtype]}", *values))


@functools.lru_cache(None)
def draw(rank: int, count: int, dtype: DType) -> list[Number]:
    """Return what a rank puts in; small numbers that every type can hold."""
    generator = random.Random(f"{rank} {count} {dtype}")
    if dtype == DType.BOOL:
        return [generator.random() < 0.5 for _ in range(count)]
    if dtype in FLOATS:
        return [generator.randrange(-64, 65) / 64 for _ in range(count)]
    low = 0 if dtype == DType.UINT8 else -100
    return [generator.randrange(low, 101) for _ in range(count)]


def rounded(value: float, dtype: DType) -> float:
    """Round to what is kept between two additions: small floats are added up as float32."""
    if dtype == DType.FLOAT64:
        return value
    result: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return result


def wrapped(value: int, dtype: DType) -> int:
    """Wrap round, as fixed-width whole numbers do."""
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    signed = dtype != DType.UINT8 and value >> (bits - 1)
    return value - (1 << bits) if signed else value


def two(op: Op, dtype: DType) -> Callable[[Number, Number], Number]:
    """Return the operation on two numbers."""
    plain: dict[Op, Callable[[Number, Number], Number]] = {
        Op.SUM: lambda a, b: a + b,
        Op.AVERAGE: lambda a, b: a + b,
        Op.PRODUCT: lambda a, b: a * b,
        Op.MIN: min,
        Op.MAX: max,
        Op.AND: lambda a, b: int(a) & int(b),
        Op.OR: lambda a, b: int(a) | int(b),
        Op.XOR: lambda a, b: int(a) ^ int(b),
    }
    if dtype in FLOATS:
        return lambda a, b: rounded(plain[op](a, b), dtype)
    if dtype == DType.BOOL:
        return lambda a, b: bool(plain[op](a, b))
    return lambda a, b: wrapped(int(plain[op](a, b)), dtype)


def expected(ranks: list[int], count: int, dtype: DType, op: Op) -> list[Number]:
    """Return the result in rank order."""
    return _expected(tuple(ranks), count, dtype, op)


@functools.lru_cache(None)
def _expected(ranks: tuple[int, ...], count: int, dtype: DType, op: Op) -> list[Number]:
    reduce = functools.partial(functools.reduce, two(op, dtype))
    sums = [reduce(column) for column in zip(*(draw(r, count, dtype) for r in ranks))]
    if op == Op.AVERAGE:
        sums = [rounded(s / len(ranks), dtype) for s in sums]
    return sums


def cases() -> list[tuple[DType, Op]]:
    """Return all types with the operations that are defined for them."""
    bits, whole = {Op.AND, Op.OR, Op.XOR}, set(DType) - FLOATS
    return [
        (dtype, op)
        for dtype in DType
        for op in Op
        if not (op in bits and dtype in FLOATS) and not (op == Op.AVERAGE and dtype in whole)
    ]


def check_reductions(group: Group, ranks: list[int]) -> int:
    """Compare all-reduce and reduce-scatter; return how many comparisons were made."""
    me, n, made = ranks[group.rank], group.size, 0
    for dtype, op in cases():
        for count in COUNTS:
            data = pack(draw(me, count, dtype), dtype)
            given, into = bytes(data), bytearray(count * dtype.itemsize)
            if me == ranks[0]:  # Ranks may mix the two calls.
                group.all_reduce_into(given, into, count, dtype, op)
            group.all_reduce(data, count, dtype, op)
            if me != ranks[0]:
                group.all_reduce_into(given, into, count, dtype, op)
            assert data == pack(expected(ranks, count, dtype, op), dtype), (dtype, op, count)
            assert into == data and given == pack(draw(me, count, dtype), dtype)
            made += 1
        everyone = pack(draw(me, 40 * n, dtype), dtype)
        before = bytes(everyone)
        mine = bytearray(40 * dtype.itemsize)
        group.start_reduce_scatter(everyone, mine, 40, dtype, op).wait()
        block = expected(ranks, 40 * n, dtype, op)[40 * group.rank : 40 * (group.rank + 1)]
        assert mine == pack(block, dtype) and everyone == before, (dtype, op)
        made += 1
    return made


def check_large(group: Group, ranks: list[int]) -> None:
    """Sum what does not fit into one piece."""
    for dtype in (DType.INT8, DType.INT64):  # Added up here, and by the group itself.
        seeds = [bytes((r + i) % 7 for i in range(1000)) for r in ranks]
        scale = [sum(column) for column in zip(*seeds)]
        data = pack([seeds[group.rank][i % 1000] for i in range(LARGE)], dtype)
        group.all_reduce(data, LARGE, dtype)
        assert data == pack([scale[i % 1000] for i in range(LARGE)], dtype), dtype


def check_copies(group: Group, ranks: list[int]) -> None:
    """Compare the collectives that only move bytes."""
    me, n = group.rank, group.size
    for size in (0, 1, 5_000_001):
        for root in range(n):
            data = bytearray([root + 1 if me == root else 99]) * size
            group.broadcast(data, size, root)
            assert data == bytearray([root + 1]) * size
    mine, everyone = array("q", [ranks[me]] * 3), array("q", [0] * 3 * n)
    group.all_gather(mine, 24, everyone)
    assert list(everyone) == [r for r in ranks for _ in range(3)]
    # Rank i sends i + k + 1 bytes of value 16 i + k to rank k.
    out = b"".join(bytes([16 * me + k]) * (me + k + 1) for k in range(n))
    received = bytearray(sum(me + k + 1 for k in range(n)))
    sizes = [me + k + 1 for k in range(n)]
    group.all_to_all(bytearray(out), sizes, received, sizes)
    assert received == b"".join(bytes([16 * k + me]) * (me + k + 1) for k in range(n))


def check_pairs(group: Group) -> None:
    """Send around the ring, in both directions at once; messages arrive in the order sent."""
    me, n = group.rank, group.size
    if n == 1:
        return
    right, left = (me + 1) % n, (me - 1) % n
    outs = [bytearray([me, k]) * 1000 for k in range(3)]
    ins = [bytearray(2000) for _ in range(6)]
    works = [group.start_send(data, 2000, right) for data in outs]
    works += [group.start_send(data, 2000, left) for data in outs]
    works += [group.start_receive(ins[k], 2000, left) for k in range(3)]
    works += [group.start_receive(ins[3 + k], 2000, right) for k in range(3)]
    for work in works:
        work.wait()
    if n == 2:  # Left and right are the same rank, so six messages go each way.
        assert [d[1] for d in ins] == [0, 1, 2, 0, 1, 2]
    assert [d[0] for d in ins] == [left] * 3 + [right] * 3


def main() -> None:
    """Check on the world and on two overlapping groups, in two steps."""
    job = holdfast.init()
    with job.open(private_bytes=8) as session:
        n, me = job.world_size, job.rank
        session.join()
        reverse = list(range(n))[::-1]
        half = [r for r in range(n) if r % 2 == me % 2]
        groups = [
            (session.world, list(range(n))),
            (session.group(reverse, "reverse"), reverse),
            (session.group(half, f"half-{me % 2}"), half),
        ]
        made = 0
        for _ in range(2):
            session.begin_step()
            for group, ranks in groups:
                assert ranks[group.rank] == me
                made += check_reductions(group, ranks)
                check_large(group, ranks)
                check_copies(group, ranks)
                check_pairs(group)
                group.barrier()
            session.end_step(holdfast.Step())
        session.begin_step()
        check_errors(session, n)
    print("compared", made)


def check_errors(session: holdfast.Session, n: int) -> None:
    """Ask for different things on different ranks: an error on every rank, and no data."""
    if n == 1:
        return
    # Sums of one type that a group adds up by itself, and of another: the group reports it.
    data = bytearray(64)
    group = session.group(list(range(n)), "different")
    op = Op.MIN if group.rank == 1 else Op.MAX
    try:
        group.all_reduce(data, 4, DType.INT8, op)
        raise SystemExit("different operations were not told apart")
    except holdfast.PeerError as error:
        assert "minimum of int8" in str(error) and "maximum of int8" in str(error), error
    group.close()
    group = session.group(list(range(n)), "sizes")
    try:
        group.broadcast(data, 8 + group.rank, 0)
        raise SystemExit("different sizes were not told apart")
    except holdfast.PeerError as error:
        assert "8 bytes" in str(error) and "9 bytes" in str(error), error
    group.close()


main()

"""A module with a global of its own; global.py uses it."""

seen = 0


def see(count: int) -> int:
    global seen
    seen += count
    return seen

"""The nursery of MindSpore's processes: `python -m holdfast.mindspore._nursery SOCKET`.

The import costs seconds of a core. The fork of a process that has imported costs some milliseconds.
MindSpore 2.10 on CPU has no thread yet when its import ends.
"""

from __future__ import annotations

from holdfast import _nursery


def prepare() -> None:
    """Import MindSpore and all that the shims and the first graph need."""
    import mindspore  # noqa: F401

    import holdfast.mindspore._boot
    import holdfast.mindspore._shims  # noqa: F401


def main() -> None:
    """Serve requests; in each forked process, run the script."""
    request = _nursery.serve(prepare)
    if request is not None:
        from holdfast.mindspore import _nestling

        _nestling.run(request)


if __name__ == "__main__":
    main()

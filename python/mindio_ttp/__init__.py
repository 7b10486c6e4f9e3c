"""MindIO's names (framework_ttp, controller_ttp) on Holdfast: for programs that import mindio_ttp.

With `holdfast.mindspore` around it, MindSpore's own callback drives Holdfast through these names.
docs/mindspore.md has a table of all functions.
"""

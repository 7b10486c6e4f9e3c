"""Run a program undisturbed, with void steps and with kills, and compare: `holdfast verify`.

Nothing in this package takes part in a real job. So it may look into the program as deep as it
likes, to name what differs.

The parent: _options → _course (which runs) → _plan (which kills), _faults (which faults on order) →
_launch (one run, in a copy of the working folder) → _records (what its processes noted) → _compare,
_prints, _files, _tables (what differs) → _culprit (which variable causes it) → _report.
Each process of a run: _child (starts the program) → _observer (steps) → _places (kills), _served
(what is pushed to parameter servers, and their rows at the end), _probe (what the program
remembers), _digest, _output (who printed what).
"""

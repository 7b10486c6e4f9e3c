"""Executes the example's notebook; its job must have one recovery, a picture, and the loss of a job without a kill."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook" / "holdfast.ipynb"
LIMIT_S = 600  # Only a hang reaches it.


def main():
    """Execute, and compare."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the notebook is kept without output"
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=LIMIT_S, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
        said = "".join(output.get("text", "") for output in outputs)
        assert "recoveries: 1\n" in said and "exit code 0\n" in said, said
        pictures = [output.data["image/svg+xml"] for output in outputs if "data" in output]
        assert len(pictures) == 1 and "<svg" in pictures[0], said
        job = [sys.executable, "-m", "holdfast", "run", "--nproc-per-node", "2", "--log-dir", "plain", "train.py"]
        plain = subprocess.run(job, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
    disturbed, undisturbed = (set(re.findall(r"^\[default\d\]:(loss .+)$", text, re.M)) for text in (said, plain))
    assert disturbed and disturbed == undisturbed, (disturbed, undisturbed)
    print(f"the notebook's job, with one kill: {disturbed}; without: {undisturbed}")


main()

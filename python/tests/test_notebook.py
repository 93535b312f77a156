"""docs/python.ipynb runs from the first to the last cell, and docs/python.md's examples run."""

import re

import pytest


def test_the_notebook_runs(repository, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(repository / "docs" / "python.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) >= 5 and not any(cell.outputs for cell in cells)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    written = [str(output.get("text", output.get("data", ""))) for cell in cells for output in cell.outputs]
    assert "reign" in "".join(written) and "75" in "".join(written)


def test_the_examples_of_the_page_run(repository, run_python):
    page = (repository / "docs" / "python.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    assert len(programs) >= 6
    out = run_python("\n".join(programs), timeout=300)
    assert "reign" in out and "75" in out

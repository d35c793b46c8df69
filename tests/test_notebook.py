"""The example notebook runs from its first cell to its last."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.places import ROOT

NOTEBOOK = ROOT / "examples" / "propose.ipynb"


@pytest.mark.long
def test_the_notebook_tells_one_job_from_its_files_to_a_measurement(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")  # what it shows is of today
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [[one for one in c.outputs if "data" in one] for c in notebook.cells if c.cell_type == "code"]
    shown = [cell[0].data for cell in outputs if cell]
    decision, plot, parts, doubts, chosen, fastest, start, before, changed, after = shown
    assert "Against the baseline" in decision["text/html"]
    assert len(plot["application/vnd.plotly.v1+json"]["data"]) >= 3
    assert "B against A: time" in parts["text/html"]
    assert "cluster.inter_node_gbytes_per_s" in doubts["text/plain"]
    assert "iteration_time_s" in chosen["text/html"]
    assert all("<table" in one["text/html"] for one in (fastest, before, changed, after))
    assert "tensor_model_parallel_size" in start["text/html"]
    assert "<title>" in (tmp_path / "report.html").read_text(encoding="utf-8")

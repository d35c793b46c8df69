"""The example notebook runs from its first cell to its last."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tests.places import ROOT

NOTEBOOK = ROOT / "examples" / "propose.ipynb"


def test_the_notebook_shows_a_table_a_plot_and_writes_the_report(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")  # what it shows is of today
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    proposal, frame, saved, plot, parts, _ = (c.outputs[:1] for c in notebook.cells if c.cell_type == "code")
    assert "<table" in proposal[0].data["text/html"]
    assert "iteration_time_s" in frame[0].data["text/html"]
    assert "less energy" in saved[0].data["text/plain"]
    assert len(plot[0].data["application/vnd.plotly.v1+json"]["data"]) >= 3
    assert "compute" in parts[0].data["text/plain"]
    assert "<title>" in (tmp_path / "report.html").read_text(encoding="utf-8")

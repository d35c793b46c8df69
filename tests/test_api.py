"""The Python API as its documentation states it: parameters with their sections, and examples that run."""

from __future__ import annotations

import doctest
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mypy import api

import jointopt
from jointopt.report.page.choice import ProposalReport
from jointopt.report.proposal import Proposal, ProposedPlan
from jointopt.report.tables import Result
from tests.pages import code
from tests.places import ROOT

VERBS = {name: getattr(jointopt, name) for name in jointopt.__all__ if inspect.isfunction(getattr(jointopt, name))}
METHODS = {
    f"{kind.__name__}.{name}": getattr(kind, name)
    for kind, names in (
        (Proposal, "select to_frame plot report write"),
        (ProposedPlan, "export explain compare"),
        (Result, "text to_dict to_frame"),
        (ProposalReport, "write"),
    )
    for name in names.split()
}


def sections(function: Callable[..., Any]) -> dict[str, str]:
    """The sections of a docstring by their titles, as numpydoc has them."""
    _, *parts = re.split(r"^(\w+)\n-+\n", inspect.getdoc(function) or "", flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("name", VERBS | METHODS)
def test_every_parameter_stands_in_the_docstring_in_its_order(name: str) -> None:
    function = (VERBS | METHODS)[name]
    signature, found = inspect.signature(function, eval_str=False), sections(function)
    named = [one.lstrip("*") for one in re.findall(r"^(\*{0,2}\w+)(?: : .+)?$", found.get("Parameters", ""), re.M)]
    assert named == [one for one in signature.parameters if one != "self"]
    assert ("Returns" in found) == (signature.return_annotation != "None")


@pytest.mark.parametrize("name", [name for name, verb in VERBS.items() if "Examples" in sections(verb)])
def test_examples_of_docstrings_give_what_they_show(name: str) -> None:
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    (example,) = finder.find(VERBS[name], name, globs={"jointopt": jointopt})
    assert (len(example.examples) > 0, runner.run(example).failed) == (True, 0)


@pytest.mark.long
def test_mypy_finds_no_fault_in_the_code_of_pages_and_the_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = json.loads((ROOT / "examples" / "propose.ipynb").read_text(encoding="utf-8"))["cells"]
    blocks = {"notebook": ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]}
    blocks |= {page.stem: code(page.read_text(encoding="utf-8"), "python") for page in (ROOT / "docs").glob("*.md")}
    blocks["readme"] = code((ROOT / "README.md").read_text(encoding="utf-8"), "python")
    files = [tmp_path / f"{name.replace('-', '_')}.py" for name, found in blocks.items() if found]
    for path, found in zip(files, filter(None, blocks.values()), strict=True):
        path.write_text("\n".join(found), encoding="utf-8")
    monkeypatch.chdir(ROOT)
    output, errors, exit_code = api.run(["--config-file=", "--check-untyped-defs", *map(str, files)])
    assert exit_code == 0, output + errors

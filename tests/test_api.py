"""The Python API as its documentation states it: parameters with their sections, and examples that run."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import jointopt
from jointopt.report.proposal import Proposal, ProposedPlan

VERBS = {name: getattr(jointopt, name) for name in jointopt.__all__ if inspect.isfunction(getattr(jointopt, name))}
METHODS = {
    f"{kind.__name__}.{name}": getattr(kind, name)
    for kind, names in ((Proposal, "select to_frame plot report write"), (ProposedPlan, "export explain compare"))
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

"""Functions of the user's that evaluate plans, by name."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from jointopt.core.errors import UsageError
from jointopt.core.schema import Columns
from jointopt.jobs.job import Job

Evaluator = Callable[[Job, Columns], Mapping[str, Any]]


def load_function(name: str) -> Evaluator:
    """The function that ``module:function`` names; UsageError for none.

    The working directory stays on the path: a simulator may import its neighbours when it is first called.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UsageError(f"--evaluate must be module:function; got {name!r}.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise UsageError(f"--evaluate: the module {module!r} cannot be imported ({error}).") from error
    if not callable(found):
        raise UsageError(f"--evaluate: the module {module!r} has no function {attribute!r}.")
    return cast("Evaluator", found)

"""Whether a model's head is its word embedding, where a table has no column for it but a name that states a size."""

from __future__ import annotations

import re
from dataclasses import replace

from jointopt.jobs.model import Model

_STATED = re.compile(r"\((\d+\.\d+)B\)\s*$")  # "Llama-like 3B (3.57B)": a count to the hundredth, not a class of sizes
_NEAR = 0.01  # relative; a count that is off by less is that of the shape


def with_stated_head(model: Model) -> Model:
    """The model with a tied head where the parameters that its name states are those of a tied one, and of no other."""
    stated = _STATED.search(model.name)
    if not stated:
        return model
    tied, count = replace(model, tied_embeddings=True), float(stated[1]) * 1e9
    of_tied, of_own = (abs(each.parameters / count - 1.0) < _NEAR for each in (tied, model))
    return tied if of_tied and not of_own else model

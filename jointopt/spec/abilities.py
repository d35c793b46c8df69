"""What a job asks for against what its framework can do: a value that nothing could run is refused at load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jointopt.core.errors import JobError
from jointopt.spec.job import Search, Training


def check_abilities(search: Search, training: Training) -> None:
    """JobError for the first value of ``search`` that the framework of ``training`` can run in no plan.

    A value that is another's canonical form counts as that one: selective recompute under flash attention is none.
    """
    for column, offered in _offers(training):
        listed: tuple[Any, ...] = getattr(search, column) or ()
        for value in listed:
            if value not in offered:
                raise JobError(
                    f"search.{column} {_word(value)}: {training.framework.name} has no such {column}; "
                    f"expected {_words(offered)}, got {_words(listed)}."
                )


def _offers(training: Training) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """(column, what the framework can do) for the columns that a framework restricts."""
    framework = training.framework
    recomputes = framework.recomputes
    if training.selective_is_none and {"none", "selective"} & set(recomputes):
        recomputes = tuple(dict.fromkeys(("none", "selective", *recomputes)))
    yield "zero_stage", framework.zero_stages
    yield "recompute", recomputes
    yield "sequence_parallel", framework.sequence_parallel
    if not framework.interleaving:
        yield "vpp", (1,)
    if not framework.context_parallel:
        yield "cp", (1,)


def _words(values: tuple[Any, ...]) -> str:
    return ", ".join(map(_word, values))


def _word(value: Any) -> str:
    return str(value).lower()

"""The ground of predictions besides the physics: assumptions, one line per topic, and measured runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from jointopt.report.table import paragraphs, wrapped

MOST_LINES = 8
_NOT_GIVEN = re.compile(r"^(\S+) is not given; (?:the usual )?(.+?) (?:of \S+ )?(?:is|are) assumed")
_OF_A_GPU = re.compile(r"^(?=\S*\d)([a-z0-9.-]+): (.+)$")  # every GPU id has a digit, no other topic has
_KERNELS = re.compile(r"^(.+?) of (?=\S*\d)([a-z0-9.-]+): (.+)$")


def assumptions(assumed: Sequence[object]) -> list[str]:
    """A heading and at most about 8 lines; what follows in parentheses is the source, which the JSON document keeps."""
    if not assumed:
        return []
    topics = by_topic(str(assumption).split(" (")[0].rstrip(".;") for assumption in assumed)
    lines = paragraphs(f"- {topic}" for topic in topics)
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], "- and more, see --json"]
    return ["Assumed (--json has all of it and the sources):", *lines]


def by_topic(sentences: Iterable[str]) -> list[str]:
    """One sentence per topic: what was not given, the power of the GPU, its kernels; others stay as they are."""
    given, power, kernels, others = [], [], [], []
    for sentence in sentences:
        if match := _NOT_GIVEN.match(sentence):
            given.append(f"{match[1]} {match[2]}")
        elif match := _OF_A_GPU.match(sentence):
            power.append((match[1], match[2]))
        elif match := _KERNELS.match(sentence):
            kernels.append((match[2], f"{match[1]}: {match[3]}"))
        else:
            others.append(sentence)
    return [
        *([f"not given: {', '.join(given)}"] if given else []),
        *([_power(power)] if power else []),
        *([f"kernels of {kernels[0][0]}: {'; '.join(text for _, text in kernels)}"] if kernels else []),
        *others,
    ]


def _power(remarks: Sequence[tuple[str, str]]) -> str:
    """The remarks on the GPU itself, which come last; those on the GPU that stands in for it are counted."""
    gpu = remarks[-1][0]
    own = "; ".join(text for name, text in remarks if name == gpu)
    there = sum(name != gpu for name, _ in remarks)
    return f"{gpu}: {own}" + (f"; {there} of these are assumed there too" if there else "")


def informed_lines(informed_by: Mapping[str, int]) -> list[str]:
    """A sentence on the measured runs that corrected the predictions, if any did."""
    runs = ", ".join(f"{count:,} in {place}" for place, count in informed_by.items())
    return wrapped(f"Corrected by measured runs on such a cluster: {runs}.") if runs else []

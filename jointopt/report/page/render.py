"""A page as one text: template, style, programs, figures and Plotly's program in it, so that it needs no network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from jointopt.core.atomic_write import write_whole
from jointopt.core.quote import html_text
from jointopt.report.tables import plain


class Shown(Protocol):
    """The content of a template, with the figures that the page draws."""

    @property
    def data(self) -> Any:
        """The figures by their places, under ``figures``, and what else the page's program reads."""


@dataclass(frozen=True)
class Page:
    """A report that is ready to be written, by the template and the program of that name."""

    content: Shown
    kind: str

    def html(self) -> str:
        """The whole page."""
        from jinja2 import Environment, FunctionLoader, StrictUndefined

        environment = Environment(
            autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
            loader=FunctionLoader(_file),
        )  # fmt: skip
        return environment.get_template(f"{self.kind}.html.j2").render(
            page=self.content, style=_file("page.css"), programs=[_file("base.js"), _file(f"{self.kind}.js")],
            plotly=_plotly(), data=_embedded(self.content.data),
        )  # fmt: skip

    def write(self, path: str | Path) -> None:
        """Writes the page to a file."""
        write_whole(Path(path), self.html())

    def _repr_html_(self) -> str:
        """The page as a notebook shows it, in a frame of its own."""
        return f'<iframe srcdoc="{html_text(self.html())}" width="100%" height="900"></iframe>'


def _file(name: str) -> str:
    return resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")


def _embedded(data: object) -> str:
    """JSON that ends no element of HTML."""
    text = json.dumps(plain(data), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")

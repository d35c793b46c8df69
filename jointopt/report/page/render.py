"""The page as one text: template, style, program, figures and Plotly's program in it, so that it needs no network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jointopt.core.atomic_write import write_whole
from jointopt.report.documents import plain
from jointopt.report.page.content import Content


@dataclass(frozen=True)
class Page:
    """A report that is ready to be written."""

    content: Content

    def html(self) -> str:
        """The whole page."""
        from jinja2 import Environment, StrictUndefined

        environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        return environment.from_string(_file("page.html.j2")).render(
            page=self.content, style=_file("page.css"), program=_file("page.js"), plotly=_plotly(),
            data=_embedded(self.content.data),
        )  # fmt: skip

    def write(self, path: Path) -> None:
        """Writes the page to a file."""
        write_whole(path, self.html())


def _file(name: str) -> str:
    return resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")


def _embedded(data: object) -> str:
    """JSON that ends no element of HTML."""
    text = json.dumps(plain(data), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")

"""A page as one text: template, style, programs, figures and Plotly's program in it, so that it needs no network."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from jointopt.core.atomic_write import write_whole
from jointopt.core.quote import html_text
from jointopt.core.short_repr import ShortRepr
from jointopt.report.tables import plain


@dataclass(frozen=True, repr=False)
class Page(ShortRepr):
    """A report that is ready to be written, by the template and the program of that name.

    ``content`` is all that the template shows; its ``data`` has the ``figures`` that the program draws, by place.
    """

    content: Mapping[str, Any]
    kind: str

    def html(self) -> str:
        """The whole page."""
        from jinja2 import Environment, FunctionLoader, StrictUndefined

        environment = Environment(
            autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
            loader=FunctionLoader(_file),
        )  # fmt: skip
        data = json.dumps(plain(self.content["data"]), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        return environment.get_template(f"{self.kind}.html.j2").render(
            page=self.content, style=_file("page.css"), programs=[_file("base.js"), _file(f"{self.kind}.js")],
            plotly=packed(_file("package_data/plotly.min.js", "plotly")),
            data=data.replace("<", "\\u003c"),  # so that it ends no element of HTML
        )  # fmt: skip

    def write(self, path: str | Path) -> None:
        """Writes the page to a file."""
        write_whole(Path(path), self.html())

    def _repr_html_(self) -> str:
        """The page as a notebook shows it, in a frame of its own."""
        return f'<iframe srcdoc="{html_text(self.html())}" width="100%" height="900"></iframe>'


def packed(text: str) -> str:
    """A text by gzip and base64, which a page unpacks: Plotly's program takes two fifths of its size so."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _file(name: str, package: str = __package__ or "") -> str:
    """The text of a file of a package, by default of this one."""
    return resources.files(package).joinpath(*name.split("/")).read_text(encoding="utf-8")

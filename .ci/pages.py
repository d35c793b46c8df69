"""The site beyond what MkDocs does: pages from elsewhere in the repository, one of every command, no foreign assets.

And no figure that is old, differs from its record or has no source (``jointopt/studies/figures.py``).
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

import click
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
# Where on the site a file of the repository stands; those of docs/ stand at its top.
OUTSIDE = {
    "README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md", "examples/propose.ipynb": "examples/propose.md",
    "studies/README.md": "studies/index.md",
} | {
    f"studies/{page.parent.name}/README.md": f"studies/{page.parent.name}.md"
    for page in ROOT.glob("studies/*/README.md")
} | {str(image.relative_to(ROOT)): str(image.relative_to(ROOT)) for image in ROOT.glob("studies/*/*.png")}  # fmt: skip
LINK = re.compile(r"(\]\()([^)#:\s]+)(#[^)\s]*)?(?=\))")
FOREIGN = re.compile(
    r"<(?:script|img|iframe)[^>]+src=\"?(?:https?:)?//[^>]*>"
    r"|<link[^>]+rel=\"?(?:stylesheet|preload|preconnect|icon)[^>]+href=\"?(?:https?:)?//[^>]*>"
)


def on_config(config: Any) -> Any:
    """Refuses pages whose figures are not those of docs/figures.json, or of predictions that moved since."""
    from jointopt.studies import figures

    if faults := figures.faults():
        raise PluginError("\n".join(faults))
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that lie outside of docs/."""
    for path, place in OUTSIDE.items():
        of = {"content": notebook(ROOT / path)} if path.endswith(".ipynb") else {"abs_src_path": str(ROOT / path)}
        files.append(File.generated(config, place, **of))
    files.append(File.generated(config, "commands.md", content=commands()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lets links to files of the repository lead to their places on the site, without the marks of figures."""
    at = {place: path for path, place in OUTSIDE.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def placed(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(at), found[2]))
        place = OUTSIDE.get(path) or OUTSIDE.get(f"{path}/README.md") or path.removeprefix("docs/")
        return found[1] + posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".") + (found[3] or "")

    from jointopt.studies import figures

    markdown = figures.unmarked(markdown)
    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(placed, part) for part in parts)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuses a page that would load something from elsewhere."""
    if foreign := FOREIGN.findall(output):
        raise PluginError(f"{page.file.src_uri} loads from elsewhere: {foreign[0]}")
    return output


def notebook(path: Path) -> str:
    """The page of a notebook: its text and its code."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = [("".join(cell["source"]), cell["cell_type"]) for cell in cells]
    return "\n\n".join(text if kind == "markdown" else f"```python\n{text}\n```" for text, kind in parts)


def commands() -> str:
    """The page of all commands: what each prints under --help."""
    from jointopt.cli.main import jointopt

    context = click.Context(jointopt, info_name="jointopt", terminal_width=100)
    found = ["# Commands\n\nWhat each prints under `--help`; `jointopt completion bash` prints what completes words.\n"]
    for name in jointopt.list_commands(context):
        command = jointopt.get_command(context, name)
        if command is not None:
            found += described(command, click.Context(command, context, name, terminal_width=100))
    return "\n".join(found)


def described(command: click.Command, context: click.Context) -> list[str]:
    """The section of a command, and those of the commands in it."""
    found = [f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"]
    inner = command.commands if isinstance(command, click.Group) else {}
    return found + [s for n, c in inner.items() for s in described(c, click.Context(c, context, n, terminal_width=100))]

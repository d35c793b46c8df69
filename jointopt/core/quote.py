"""Text for another program, quoted by one function for each language; whoever writes a script or a file uses these.

A value that its language cannot hold (a zero character in a word of shell, a line end in an ``#SBATCH`` line) is a
UsageError; every other one arrives as it was given, and is never read as a command, a tag, a formula or a header.
"""

from __future__ import annotations

import html
import json
import re
import shlex
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jointopt.core.errors import UsageError

# --- shell ----------------------------------------------------------------------------------------------------------


def sh_word(word: str, variables: Iterable[str] = ()) -> str:
    """One word of shell as it stands; ``${NAME}`` of these ``variables`` alone stands for a value."""
    if "\0" in word:
        raise UsageError(f"{word!r:.80} holds a zero character, which no argument of a program can; leave it out.")
    names = "|".join(map(re.escape, variables))
    if not names:
        return shlex.quote(word)
    parts = re.split(rf"\$\{{({names})\}}", word)  # text, name, text, name, ..., text
    return "".join(f'"${{{part}}}"' if i % 2 else shlex.quote(part) for i, part in enumerate(parts) if part) or "''"


def sh_command(words: Iterable[str], variables: Iterable[str] = ()) -> str:
    """Words of one command line, each as `sh_word`."""
    names = tuple(variables)
    return " ".join(sh_word(word, names) for word in words)


def sh_variable(name: str) -> str:
    """The value of a variable, as one word."""
    return f'"${name}"'


def sh_exports(variables: Mapping[str, str], known: Iterable[str] = ()) -> list[str]:
    """Lines of shell that set environment variables; ``${NAME}`` of those ``known`` alone stands for a value."""
    names = tuple(known)
    return [f"export {name}={sh_word(value, names)}" for name, value in variables.items()]


def sh_file(name: str, text: str) -> str:
    """Lines of shell that write a file with this text, ending in one line end; no line of it ends it early."""
    end = "END"
    while end in text.splitlines():
        end += "_"
    return f"cat > {sh_word(name)} <<'{end}'\n{text.rstrip()}\n{end}\n"


def comment(text: str) -> str:
    """Text for the rest of a line that begins with ``#``: what is no printable character is a blank there."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def our_command(verb: str, *places: str, **options: str | None) -> str:
    """A command of jointopt to copy: places, then options (None: left out); no text of either is an option of its own.

    ``our_command("select", "a study", storage="sqlite:///x.db")``.
    """
    given: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is not None:
            given += [f"{option}={value}"] if value.startswith("-") else [option, value]
    words = [*given, "--", *places] if any(place.startswith("-") for place in places) else [*places, *given]
    return sh_command(["jointopt", verb, *words])


def sh_lines(command: str, most: int = 78) -> str:
    """A command in lines of at most ``most`` characters, which a shell joins; longer words stay whole.

    The words of a plan (``dp=4 tp=2``) stand in double quotes, and may go on in another line with more blanks between.
    """
    parts: list[str] = []
    for word in shlex.split(command):
        is_plan = re.fullmatch(r"\w+=\S+(?: \w+=\S+)+", word) and not re.search(r'["$`\\!]', word)
        first, *more = f'"{word}"'.split(" ") if is_plan else [sh_word(word)]
        if parts and parts[-1].startswith("--") and not first.startswith("--"):  # a value stays with its option
            first = f"{parts.pop()} {first}"
        parts += [first, *more]
    lines = parts[:1]
    for number, part in enumerate(parts[1:], start=2):
        needed = len(lines[-1]) + len(f" {part}") + (number < len(parts)) * len(" \\")
        lines[-1:] = [f"{lines[-1]} {part}"] if needed <= most else [f"{lines[-1]} \\", f"  {part}"]
    return "\n".join(lines)


# --- Slurm and Kubernetes -------------------------------------------------------------------------------------------


def sbatch_line(option: str) -> str:
    """One option of sbatch as a line of its script. UsageError where it holds a line end or another control sign."""
    if not option.isprintable():
        raise UsageError(f"{option!r:.200} has a character that no #SBATCH line can hold; expected one printable line.")
    if re.fullmatch(r"[^\s'\"\\#]+", option):
        return f"#SBATCH {option}"
    name, mark, value = option.partition("=")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'#SBATCH {name}{mark}"{escaped}"'


def container_mounts(places: Sequence[str]) -> str:
    """Mounts of pyxis and apptainer as one value: ``/data,/in:/out``. UsageError for a place with a comma in it."""
    for place in places:
        if "," in place or not place.isprintable():
            raise UsageError(
                f"{place!r:.200} cannot be mounted into a container, whose mounts are separated by commas; expected "
                "printable paths such as /data or /data:/in-it."
            )
    return ",".join(places)


def kubernetes_text(text: str) -> str:
    """Text of a container's command or variables, in which Kubernetes replaces no ``$(NAME)`` and no ``$$``."""
    return re.sub(r"\$(?=[$(])", "$$", text)


# --- files of settings ----------------------------------------------------------------------------------------------


_ENDS_LINE = re.compile("[\x85\u2028\u2029]")  # for YAML, and nowhere else: read back as blanks or line ends


def yaml_text(mapping: Mapping[str, Any]) -> str:
    """The mapping as YAML for people: keys in their order, a line for each, text of several lines as a block."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = '"' if _ENDS_LINE.search(value) else "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return str(yaml.dump(dict(mapping), Dumper=Dumper, sort_keys=False, width=4096, allow_unicode=True))


def toml_text(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections of TOML; a point in the name of one nests it. Text has JSON's escapes, and no surrogate pairs."""

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

    def key(name: str) -> str:
        return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else text(name)

    lines = []
    for section, values in sections.items():
        names = ".".join(map(key, section.split(".")))
        lines += [f"[{names}]", *(f"{key(name)} = {text(value)}" for name, value in values.items()), ""]
    return "\n".join(lines)


def hydra_word(place: str, value: Any) -> str:
    """``place=value``, an override of Hydra, in which text that its grammar would read otherwise stands in quotes."""
    plain = isinstance(value, str) and re.fullmatch(r"[\w./%@+-]+", value)
    return f"{place}={value if plain else json.dumps(value, separators=(',', ':'), ensure_ascii=False)}"


def python_text(value: object) -> str:
    """Text, a number or a list of them as a literal of Python, on one line."""
    return repr(value)


# --- tables, pages, addresses ---------------------------------------------------------------------------------------

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def csv_cell(text: str) -> str:
    """Text that no spreadsheet takes for a formula: an apostrophe before ``=+-@``, tab and line end; numbers stay."""
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def csv_original(text: str) -> str:
    """The text that `csv_cell` was given."""
    return text[1:] if text.startswith("'") and csv_cell(text[1:]) == text else text


def html_text(text: str) -> str:
    """Text between tags of HTML, or of an attribute."""
    return html.escape(text)


def local_url(path: str, query: Iterable[tuple[str, str]] = ()) -> str:
    """A page of this server: one slash in front, so that no path names another host, and no sign that ends a header."""
    rest = urllib.parse.urlencode(list(query))
    place = urllib.parse.quote(path.lstrip("/\\"), safe="/-._~!$&'()*+,;=:@", encoding="latin-1", errors="replace")
    return f"/{place}" + (f"?{rest}" if rest else "")


def header_value(text: str) -> str:
    """The value of an HTTP header without signs that would end it."""
    return re.sub(r"[\x00-\x1f\x7f]", "", text)

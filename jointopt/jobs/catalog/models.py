"""The model catalogue: ``models.yaml`` read once; each shape in the keys of its Hugging Face config.json."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from jointopt.core.errors import CatalogError, close_words, did_you_mean
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.huggingface import model_from_config
from jointopt.jobs.model import Model


@dataclass(frozen=True)
class PublishedModel:
    """A catalogue entry: the shape, and the parameter counts that its authors publish."""

    model: Model
    published_parameters: int
    published_active_parameters: int | None
    source: str


def model_names() -> tuple[str, ...]:
    """Every model name of the catalogue, in the order of the file (by family and size)."""
    return tuple(read_yaml("models.yaml"))


def load_model(name: str) -> Model:
    """The model of that catalogue name or alias (a Hugging Face repository is one), as `_plain` makes them alike.

    Raises `CatalogError` for an unknown name, naming the nearest known ones.
    """
    return published_model(name).model


def known_model(name: str) -> Model | None:
    """`load_model`, or None where no catalogue entry has that name."""
    found = known_names().get(_plain(name))
    return _published(found).model if found else None


def named_model(text: str) -> Model | None:
    """The model that others spell another way (``DeepSeekV3``, ``Qwen3_30B_a3B``), by letters and digits alone.

    One that was tuned afterwards (``-Instruct``) has the shape of the first. None where no catalogue entry is meant.
    """
    found = _squeezed_names().get(_squeezed(_TUNED.sub("", text.rstrip("/").rpartition("/")[2])))
    return known_model(text) or (_published(found).model if found else None)


_TUNED = re.compile(r"[-_](?:instruct|chat|hf|it|base)$", re.IGNORECASE)


def _squeezed(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


@functools.cache
def _squeezed_names() -> dict[str, str]:
    """Letters and digits of each name, or of the last part of an alias -> the catalogue's name."""
    return {_squeezed(_TUNED.sub("", known.rpartition("/")[2])): name for known, name in known_names().items()}


def published_model(name: str) -> PublishedModel:
    """The catalogue entry of that name or alias; `CatalogError` names the nearest known ones."""
    if _plain(name) not in known_names():
        raise CatalogError(
            f"The model {name[:80]!r} is not in the catalogue{near_models(name)}; `jointopt catalog models` "
            f"lists the {len(model_names())} known ones, and a path to a config.json or a shape written in place "
            f"describes any other."
        )
    return _published(known_names()[_plain(name)])


def near_models(name: str) -> str:
    """`` (did you mean 'llama-3-8b' or 'llama-3-70b'?)`` for a name that none has; empty where none is like it."""
    near = close_words(name, known_names(), 6)
    return did_you_mean([*dict.fromkeys(known_names()[one] for one in near)][:3])


@functools.cache
def known_names() -> dict[str, str]:
    """Name or alias as `_plain` has it -> catalogue name."""
    entries = read_yaml("models.yaml")
    names = {name: name for name in entries}
    return names | {_plain(alias): name for name in entries for alias in entries[name].get("aliases", ())}


def _plain(name: str) -> str:
    """A name in small letters, with a hyphen for a blank or an underscore."""
    return name.lower().replace("_", "-").replace(" ", "-")


@functools.cache
def _published(name: str) -> PublishedModel:
    entry = read_yaml("models.yaml")[name]
    counts = entry["published_parameters"], entry.get("published_active_parameters")
    return PublishedModel(model_from_config(entry["config"] | entry.get("details", {}), name), *counts, entry["source"])

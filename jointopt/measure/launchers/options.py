"""Options that a launcher is made with, checked against its annotations before anything starts."""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from jointopt.core.errors import UsageError, nearest
from jointopt.spec.check import is_number, is_whole, shown

_KINDS: dict[Any, tuple[str, Callable[[object], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number from 0 on", lambda value: is_whole(value) and int(str(value)) >= 0),
    float: ("a number", is_number),
    str: ("text", lambda value: isinstance(value, str)),
    Path: ("a path", lambda value: isinstance(value, str | os.PathLike)),
    type(None): ("", lambda value: value is None),
}
_PLAIN = (bool, int, float, str, list, tuple, dict)  # values that a command line or a file can hold
_LISTS = (Sequence, list, tuple)


def checked_options(launcher: str, make: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` as ``make`` takes them, paths as `Path`.

    Raises UsageError for an option that ``make`` does not have, one that it needs, or one of another type than it
    states; seconds (``..._s``) must be above 0. What states no type that is known here is left to ``make``.
    """
    parameters = _parameters(make)
    for key in given.keys() - parameters.keys():
        raise UsageError(f"The launcher {launcher!r} has no option {key!r}{_instead(key, parameters)}.")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in given:
            option = f"--{key.replace('_', '-')}"
            raise UsageError(f"The launcher {launcher!r} needs {key!r}; on the command line {option}.")
    return {key: _fitting(launcher, key, parameters[key].annotation, value) for key, value in given.items()}


def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Those of ``make``, with their types where these can be found."""
    try:
        return inspect.signature(make, eval_str=True).parameters
    except (NameError, AttributeError, TypeError, SyntaxError):  # names that only a type checker sees
        return inspect.signature(make).parameters


def _instead(key: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    if key == "logs" and "folder" in parameters:
        return ": logs lie in the folder that is given as --folder"
    return nearest(key, parameters)


def _fitting(launcher: str, key: str, annotation: Any, value: Any) -> Any:
    is_union = get_origin(annotation) in (Union, types.UnionType)
    kinds = list(get_args(annotation)) if is_union else [annotation]
    in_seconds = key.endswith("_s") and float in kinds
    fits = any(_fits(kind, value) for kind in kinds)
    if not fits or (in_seconds and is_number(value) and value <= 0):
        words = "a number of seconds above 0" if in_seconds else " or ".join(filter(None, map(_words, kinds)))
        raise UsageError(f"{key} of the launcher {launcher!r} must be {words}; got {shown(value)}.")
    return Path(value) if Path in kinds and str not in kinds and isinstance(value, str) else value


def _fits(kind: Any, value: Any) -> bool:
    """Whether a value is of a type; of one that no command line can state, all objects are but plain ones."""
    if kind in (Any, inspect.Parameter.empty) or isinstance(kind, str):
        return True
    if kind in _KINDS:
        return _KINDS[kind][1](value)
    if get_origin(kind) in _LISTS:
        return isinstance(value, list | tuple)
    return isinstance(value, kind) if kind in _PLAIN else not isinstance(value, _PLAIN)


def _words(kind: Any) -> str:
    return _KINDS[kind][0] if kind in _KINDS else "a list" if get_origin(kind) in _LISTS else ""

"""Options that a launcher is made with, checked against what it says of their types before anything starts."""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from jointopt.core.errors import UsageError, nearest
from jointopt.spec.check import is_number, is_whole, shown

_SECONDS = "_s"  # as a name's ending


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_path(value: object) -> bool:
    return isinstance(value, str | os.PathLike)


_KINDS: dict[Any, tuple[str, Callable[[object], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number from 0 on", lambda value: is_whole(value) and int(str(value)) >= 0),
    float: ("a number", is_number),
    str: ("text", _is_text),
    Path: ("a path", _is_path),
    type(None): ("", lambda value: value is None),
}
_PLAIN = (bool, int, float, str, list, tuple, dict)  # what a command line or a file can say


def checked_options(launcher: str, make: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` as ``make`` takes them, paths as `Path`.

    Raises UsageError for an option that ``make`` does not have, one that it needs, or one of another type than it
    states; seconds (``..._s``) must be above 0. What states no type that is known here is left to ``make``.
    """
    parameters = _parameters(make)
    for key in given:
        if key not in parameters:
            raise UsageError(f"The launcher {launcher!r} has no option {key!r}{_instead(key, parameters)}.")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in given:
            raise UsageError(
                f"The launcher {launcher!r} needs {key!r}; on the command line --{key.replace('_', '-')}."
            )
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


def _fitting(launcher: str, key: str, stated: Any, value: Any) -> Any:
    kinds = list(_alternatives(stated))
    in_seconds = key.endswith(_SECONDS) and float in kinds
    fits = any(_fits(kind, value) for kind in kinds)
    if not fits or (in_seconds and is_number(value) and value <= 0):
        expected = (
            "a number of seconds above 0" if in_seconds else " or ".join(filter(None, map(_words, kinds)))
        )
        raise UsageError(f"{key} of the launcher {launcher!r} must be {expected}; got {shown(value)}.")
    return Path(value) if Path in kinds and str not in kinds and isinstance(value, str) else value


def _alternatives(stated: Any) -> Iterator[Any]:
    """The types of a union, or the one type."""
    if get_origin(stated) in (Union, types.UnionType):
        yield from get_args(stated)
    else:
        yield stated


def _fits(kind: Any, value: Any) -> bool:
    """Whether a value is of a type; of one that no command line can say, all objects are but plain ones."""
    if kind in (Any, inspect.Parameter.empty) or isinstance(kind, str):
        return True
    if kind in _KINDS:
        return _KINDS[kind][1](value)
    if get_origin(kind) in (Sequence, list, tuple):
        return isinstance(value, list | tuple)
    return isinstance(value, kind) if kind in _PLAIN else not isinstance(value, _PLAIN)


def _words(kind: Any) -> str:
    if kind in _KINDS:
        return _KINDS[kind][0]
    return "a list" if get_origin(kind) in (Sequence, list, tuple) else ""

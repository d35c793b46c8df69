"""Loaded by every Python that `jointopt exec` starts: once its framework knows it, the stage of its rank is reported.

Read are Megatron Core's parallel state, DeepSpeed's and nanotron's grids, and any ``DeviceMesh`` with a dimension pp
(torchtitan). Only the standard library, since the program's Python may have no jointopt, and nothing that fails here
reaches the program. Another ``sitecustomize`` of that Python is run as it would be without this one.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

FOLDER = "JOINTOPT_STAGES"  # environment variable: where `jointopt exec` reads rank-0, rank-1, ...


def report_stage(rank: int, stage: int) -> None:
    """Tell `jointopt exec` that ``rank`` runs pipeline ``stage``; without it, nothing happens.

    Parameters
    ----------
    rank : int
        Of the process among all, from 0.
    stage : int
        Of the pipeline, from 0.
    """
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    with contextlib.suppress(OSError):
        file = os.path.join(folder, f"rank-{int(rank)}")
        part = f"{file}.{os.getpid()}"
        with open(part, "w", encoding="ascii") as stream:
            stream.write(str(int(stage)))
        os.replace(part, file)


# module: what it calls when its ranks are laid out, and the stage of this one, from the module and that object
_Stage = Callable[[Any, Any], int]
_KNOWN: dict[str, tuple[str, _Stage]] = {
    "megatron.core.parallel_state": (
        "initialize_model_parallel", lambda module, first: int(module.get_pipeline_model_parallel_rank()),
    ),
    "deepspeed.runtime.pipe.topology": (
        "PipelineParallelGrid.__init__", lambda module, grid: int(grid.get_stage_id()),
    ),
    "nanotron.parallel.context": (
        "ParallelContext._init_parallel_groups",
        lambda module, context: int(sys.modules["torch"].distributed.get_rank(context.pp_pg)),
    ),
    "torch.distributed.device_mesh": (
        "DeviceMesh.__init__", lambda _, mesh: int(mesh.get_coordinate()[mesh.mesh_dim_names.index("pp")]),
    ),
}  # fmt: skip


def _watch(module: Any) -> None:
    """Let a module report the stage of this rank when it has laid the ranks out."""
    path, stage = _KNOWN[module.__name__]
    *places, name = path.split(".")
    owner = functools.reduce(getattr, places, module)
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def watched(*given: Any, **named: Any) -> Any:
        result = plain(*given, **named)
        with contextlib.suppress(Exception):  # a mesh without pp, a rank outside of the mesh, another version
            rank = int(os.environ.get("RANK") or sys.modules["torch"].distributed.get_rank())
            report_stage(rank, stage(module, given[0] if given else None))
        return result

    setattr(owner, name, watched)


class _Finder(MetaPathFinder):
    """Finds the known modules as the finders after it do, and watches them when they have been loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The module's own spec; None for all modules that are not known."""
        if name not in _KNOWN:
            return None
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, specs), None)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def loaded(module: Any) -> None:
            load(module)
            with contextlib.suppress(Exception):
                _watch(module)

        spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec


if __name__ == "sitecustomize":
    if os.environ.get(FOLDER):
        sys.meta_path.insert(0, _Finder())
    # the `sitecustomize` that this one hides is run, with this folder off the path
    _here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [_place for _place in sys.path if os.path.abspath(_place or os.curdir) != _here]
    _spec = PathFinder.find_spec("sitecustomize", sys.path)
    if _spec is not None and _spec.loader is not None:
        _spec.loader.exec_module(importlib.util.module_from_spec(_spec))

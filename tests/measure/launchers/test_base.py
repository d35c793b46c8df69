"""Launchers by name, shipped and from other packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from jointopt.core.errors import UsageError
from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.measure import base as module
from jointopt.measure.base import launcher_names, load_launcher
from jointopt.measure.local import CommandProgram
from jointopt.measure.replay import ReplayLauncher
from jointopt.runs.rows import new_log


def mine(cores: int = 2, offset_w: float = 0.0, wait_s: float = 1.0) -> SimpleNamespace:
    return SimpleNamespace(name="mine", cores=cores, offset_w=offset_w, wait_s=wait_s)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that adds the launcher ``mine``."""
    entry, real = SimpleNamespace(name="mine", load=lambda: mine), module.entry_points

    def entry_points(group: str, **wanted: str) -> list:
        ours = [entry] if group == "jointopt.launchers" and wanted.get("name", "mine") == "mine" else []
        return [*real(group=group, **wanted), *ours]

    monkeypatch.setattr(module, "entry_points", entry_points)


def test_a_shipped_launcher_is_made_with_its_options(make_runs, tmp_path: Path) -> None:
    make_runs().to_csv(tmp_path / "runs.csv", index=False)
    assert isinstance(load_launcher("replay", table=tmp_path / "runs.csv"), ReplayLauncher)


def test_shipped_launchers_are_entry_points_as_others_are() -> None:
    assert {"command", "megatron", "replay", "slurm", "torchrun"} <= set(launcher_names())


def test_an_installed_package_adds_a_launcher(installed: None) -> None:
    assert "mine" in launcher_names()
    assert load_launcher("mine", cores=4, table=None).cores == 4


def test_only_seconds_must_be_above_zero(installed: None) -> None:
    assert load_launcher("mine", offset_w=-1.5, wait_s=0.1, cores=0).offset_w == -1.5
    with pytest.raises(UsageError, match="wait_s of the launcher 'mine' must be a number of seconds above 0; got 0"):
        load_launcher("mine", wait_s=0)


def test_an_unknown_name_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"one of .*, replay, .*; got 'relpay' \(did you mean 'replay'\?\)"):
        load_launcher("relpay")


def test_a_missing_option_is_named_as_on_the_command_line() -> None:
    with pytest.raises(UsageError, match="--table"):
        load_launcher("replay", table=None)


def test_a_launcher_that_is_made_already_takes_no_options(make_runs) -> None:
    made = ReplayLauncher(make_runs())
    assert load_launcher(made) is made
    with pytest.raises(UsageError, match=r"made already takes no options; got bugdet\."):
        load_launcher(made, bugdet=3)


def test_an_option_of_another_launcher_is_refused(installed: None) -> None:
    with pytest.raises(UsageError, match=r"has no option 'core' .did you mean 'cores'"):
        load_launcher("mine", core=4)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("limit_s", -3, "a number of seconds above 0"),
        ("limit_s", "abc", "a number of seconds above 0"),
        ("limit_s", float("nan"), "a number of seconds above 0"),
        ("iterations", "abc", "a whole number from 0 on"),
        ("default_clocks", "maybe", "true or false"),
        ("logs", 7, "a path"),
    ],
)
def test_a_value_of_another_type_is_refused_before_anything_starts(option: str, value: object, expected: str) -> None:
    with pytest.raises(UsageError, match=f"{option} of the launcher 'megatron' must be {expected}; got"):
        load_launcher("megatron", checkout=Path(__file__).parent, **{option: value})


def test_a_path_in_words_is_a_path_and_objects_are_taken_as_they_are(tmp_path: Path) -> None:
    assert load_launcher("command", command=["a", "{result}"], logs=str(tmp_path)).logs == tmp_path
    program = CommandProgram("a {result}")
    slurm = load_launcher("slurm", program=program, limit_s=0.5)
    assert slurm.program is program
    assert slurm.limit_s == 0.5


def test_slurm_says_where_its_logs_are() -> None:
    with pytest.raises(UsageError, match="has no option 'logs': logs lie in the folder that is given as"):
        load_launcher("slurm", logs=Path("x"))


def test_real_entry_points_have_the_shape_the_test_uses() -> None:
    entry = EntryPoint("mine", "types:SimpleNamespace", "jointopt.launchers")
    assert entry.load() is SimpleNamespace


def test_every_run_of_a_plan_has_a_log_of_its_own(tmp_path: Path) -> None:
    plan = dict.fromkeys(LAYOUT_COLUMNS, 1) | {"dp": 4, "recompute": "none"}
    first, second = new_log(tmp_path / "logs", plan), new_log(tmp_path / "logs", plan)
    assert first != second
    assert first.name.startswith("dp4-tp1-")
    assert sorted((tmp_path / "logs").iterdir()) == sorted([first, second])

"""How much memory is free, by the machine and by the control group."""

from pathlib import Path

from jointopt.core.system import free_bytes


def test_a_control_group_with_little_left_limits_what_is_free(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert free_bytes(tmp_path) == 2000


def test_a_control_group_without_a_limit_leaves_that_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert (free_bytes(tmp_path) or 0) > 10**6

"""The short part of the campaign of faults; `fuzz.py`, `kills.py` and `together.py` are the long one."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jointopt.core.errors import JointOptError
from tests.campaign import canaries
from tests.campaign.fuzz import Reader
from tests.campaign.inputs import Kind, inputs, kind_named, outcome
from tests.campaign.kills import Field
from tests.campaign.surrogates import good

pytestmark = pytest.mark.long  # the short part of a campaign

IN_PROCESS = ("jobs", "plans", "calibrations", "logs", "scripts", "exports", "rebuilt")


@pytest.mark.parametrize("name", IN_PROCESS)
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_changed_file_is_read_or_refused_in_a_sentence(name: str, data: st.DataObject, tmp_path: Path) -> None:
    kind = kind_named(name)
    file = tmp_path / f"input{kind.suffix}"
    file.write_bytes(data.draw(inputs(kind)))
    assert outcome(kind, file) in ("read", "refused")


@pytest.mark.parametrize(
    ("does", "found"),
    [
        ("while True: pass", "hang"), ("os.kill(os.getpid(), 9)", "crash (-9)"), ("0", "read"),
        ("raise JointOptError('why')", "refused"), ("[][0]", "IndexError: list index out of range"),
    ],
)  # fmt: skip
def test_the_fuzz_says_what_became_of_a_file_and_reads_on_after_a_crash_or_a_hang(
    does: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.campaign.fuzz.LIMIT_S", 0.2)
    reader = Reader(
        Kind(
            "programs", ".py", (b"0",), lambda path: exec(path.read_bytes(), {"JointOptError": JointOptError, "os": os})
        ),
        tmp_path,
    )
    assert [reader.read(text) for text in (b"0", does.encode(), b"0")] == ["read", found, "read"]
    reader.process.kill()


def test_the_fuzz_of_surrogates_notices_runs_that_are_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with np.load(good() / "support.npz") as file:
        arrays = dict(file)
    arrays["features"] = np.full_like(arrays["features"], 99.0)
    np.savez(content := io.BytesIO(), **arrays)  # type: ignore[arg-type]  # its keywords have a bool among them
    (tmp_path / "input.bin").write_bytes(b"support.npz\n" + content.getvalue())
    assert outcome(kind_named("rebuilt"), tmp_path / "input.bin") == "refused"
    monkeypatch.setattr("jointopt.surrogate.files._check_names", lambda surrogate: None)
    assert outcome(kind_named("rebuilt"), tmp_path / "input.bin").startswith("IndexError")


def test_no_text_of_an_export_is_run_and_every_word_arrives_as_given_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "field").mkdir()
    wrong: list[tuple[str, str]] = []
    found = canaries.campaign(6 * len(canaries.KINDS), 7, tmp_path / "field", lambda *what: wrong.append(what))
    assert wrong == []
    assert all(outcomes["given"] for outcomes in found.values())


def test_the_canaries_notice_a_word_that_is_not_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jointopt.core.quote.shlex.quote", lambda word: word)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "field").mkdir()
    found = canaries.campaign(6 * len(canaries.KINDS), 7, tmp_path / "field")
    assert all(found[kind]["wrong"] for kind in ("megatron", "slurm", "kubernetes", "printed"))


@pytest.mark.parametrize("name", IN_PROCESS)
def test_every_file_is_a_good_one_before_it_is_changed(name: str, tmp_path: Path) -> None:
    kind = kind_named(name)
    file = tmp_path / f"input{kind.suffix}"
    for seed in kind.seeds[:5]:
        file.write_bytes(seed)
        assert (
            outcome(kind, file) in ("read", "refused") if name in ("logs", "scripts") else outcome(kind, file) == "read"
        )


def test_a_measuring_command_that_is_killed_loses_and_leaves_nothing(driver_library: Path, tmp_path: Path) -> None:
    assert Field(tmp_path, random.Random(1)).kill("exec") == ("exec", Counter())


def test_eight_tunes_on_one_postgresql_run_no_plan_twice(postgres_url: str) -> None:
    program = [sys.executable, str(Path(__file__).with_name("together.py")), postgres_url]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout + ran.stderr

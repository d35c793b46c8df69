"""Lines of #SBATCH as Slurm itself reads them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from jointopt.core.quote import sbatch_line
from tests.campaign.canaries import HOSTILE

# Slurm itself keeps no name with a newline, and cuts off blanks at its ends
NAMES = [text for text in HOSTILE if text.isprintable() and text.strip() == text and 0 < len(text) < 200]


@pytest.mark.parametrize("at", range(3))
def test_slurm_takes_an_option_with_any_text_as_it_was_given(cluster: object, at: int, tmp_path: Path) -> None:
    for name in NAMES[at::3]:
        lines = [sbatch_line(f"--job-name={name}"), sbatch_line("--hold"), sbatch_line(f"--output={tmp_path}/a b.txt")]
        (tmp_path / "script").write_text("\n".join(["#!/bin/bash", *lines, "true", ""]), encoding="utf-8")
        sent = subprocess.run(["sbatch", "--parsable", tmp_path / "script"], capture_output=True, text=True, check=True)
        number = sent.stdout.strip()
        shown = subprocess.run(["squeue", "-h", "-j", number, "-o", "%j"], capture_output=True, text=True, check=True)
        subprocess.run(["scancel", number], check=True)
        assert shown.stdout.removesuffix("\n") == name

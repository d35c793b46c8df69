"""The pages of NVIDIA, AMD and torchtitan: times that they publish, and which of these predictions do not reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from jointopt.surrogate.dataset import price

PAGES = yaml.safe_load((Path(__file__).parent / "published_pages.yaml").read_text(encoding="utf-8"))


def marked(page: str, run: dict[str, Any]) -> Any:
    name = f"{page.partition(',')[0]} {run['model']} {run['num_gpus']} {run['gpu']} {run['dtype']}"
    return pytest.param(run, id=name, marks=[pytest.mark.xfail(reason=run["unmet"])] if "unmet" in run else [])


@pytest.mark.parametrize("run", [marked(page, run) for page, runs in PAGES.items() for run in runs])
def test_a_published_time_is_predicted_within_15_percent(run: dict[str, Any]) -> None:
    cells = {name: value for name, value in run.items() if name not in ("seconds", "unmet")}
    found = price(pd.DataFrame([cells])).physics["iteration_time_s"][0]
    assert found == pytest.approx(run["seconds"], rel=0.15)

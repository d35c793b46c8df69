"""Draws docs/report.png anew: the head of a proposal's page, its front, and one iteration, as a browser shows them.

    .venv/bin/python tests/bench/draw_report.py [CHROMIUM]

Needs Playwright (pip install 'jointopt[browser]') and the program of a Chromium, by default /usr/bin/chromium.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench_accuracy import ROOT
from playwright.sync_api import sync_playwright

import jointopt

JOB, WIDTH = "llama-3-70b-4x8-h200", 1160
# what is left out of the picture: sections but two, and what stands below the figure of each of them
LEFT_OUT = """
for (const one of document.querySelectorAll('section'))
  if (!['front', 'iteration'].includes(one.id)) one.style.display = 'none';
for (const id of ['front', 'iteration']) {
  const figure = document.querySelector(`#${id} .js-plotly-plot`);
  for (let one = figure; one.id !== id; one = one.parentElement)
    for (let next = one.nextElementSibling; next; next = next.nextElementSibling) next.style.display = 'none';
}
document.querySelectorAll('hr, footer, nav').forEach(one => one.style.display = 'none');
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as browsers:
        file = Path(folder) / "report.html"
        jointopt.propose(jointopt.load_job(JOB), source=JOB).report().write(str(file))
        chromium = sys.argv[1] if len(sys.argv) > 1 else "/usr/bin/chromium"
        page = browsers.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page()
        page.set_viewport_size({"width": WIDTH, "height": 100})
        page.goto(file.as_uri())
        page.wait_for_selector("#iteration .js-plotly-plot")
        page.evaluate(LEFT_OUT)
        page.screenshot(path=ROOT / "docs" / "report.png", full_page=True)


if __name__ == "__main__":
    main()

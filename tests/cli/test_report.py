"""`jointopt report`: from folders, studies and pipes, and what a browser makes of it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt
from tests.places import ROOT

JOB = "opt-350m-2x4-a100"
CHROMIUM = next((p for p in ("/usr/bin/chromium", "/usr/bin/google-chrome") if Path(p).exists()), None)


def run(*arguments: object, **options: Any) -> Result:
    return CliRunner().invoke(jointopt, list(map(str, arguments)), **options)


@pytest.fixture(scope="module")
def proposed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `propose` leaves of a job with a pipeline: out/, studies.db, report.html."""
    folder = tmp_path_factory.mktemp("proposed")
    job = folder / "job.yaml"
    job.write_text("model: opt-350m\ntraining: {seq_length: 2048, global_batch_size: 256}\n"
                   "cluster: {gpu: a100-sxm4-40gb, nodes: 2, gpus_per_node: 4}\nsearch: {pp: [2, 4]}\n")  # fmt: skip
    words = ("--out", folder / "out", "--storage", f"sqlite:///{folder}/studies.db", "--report", folder / "report.html")
    result = run("propose", job, *words, "--study", "kept")
    assert result.exit_code == 0, result.output
    return folder


def without_study(page: Path) -> str:
    return re.sub(r"<div><dt>(study|seconds of the search)</dt>.*?</div>", "", page.read_text(encoding="utf-8"))


def test_a_folder_a_study_and_a_pipe_give_the_page_that_propose_writes(proposed: Path, tmp_path: Path) -> None:
    study = ("kept", "--studies", f"sqlite:///{proposed}/studies.db")
    text = (proposed / "out" / "proposal.json").read_text(encoding="utf-8")
    for number, words in enumerate(((proposed / "out",), (proposed / "out" / "proposal.json",), study, ("-",))):
        out = tmp_path / f"{number}.html"
        result = run("report", *words, "--out", out, "--storage", "none", input=text)
        assert result.exit_code == 0, result.output
        assert without_study(out) == without_study(proposed / "report.html")


def test_the_trace_has_every_pass_as_an_event(proposed: Path, tmp_path: Path) -> None:
    run("report", proposed / "out", "--out", tmp_path / "report.html", "--trace", tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    forward = [event for event in events if event["name"] == "forward" and event["pid"] == 1]
    plan = json.loads((proposed / "out" / "proposal.json").read_text(encoding="utf-8"))["front"][0]
    batches = 256 // (plan["dp"] * plan["micro_batch_size"])
    assert len(forward) == plan["pp"] * plan["vpp"] * batches
    assert max(e["ts"] + e.get("dur", 0) for e in events if e["ph"] == "X" and e["pid"] == 1) == pytest.approx(
        1e6 * plan["iteration_time_s"], rel=1e-6
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("no json", "cannot be read as JSON"),
        ('{"front": []}', "holds no proposal, for it has no job and no job_file and no front"),
        (None, "No such file"),
    ],
)
def test_what_is_no_proposal_is_one_sentence(tmp_path: Path, content: str | None, reason: str) -> None:
    file = tmp_path / "proposal.json"
    if content is not None:
        file.write_text(content)
    result = run("report", file, "--out", tmp_path / "report.html")
    assert (result.exit_code, "Traceback" in result.output) == (2, False)
    assert reason in result.output


def test_a_study_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    result = run("report", "none-such", "--out", tmp_path / "r.html", "--studies", f"sqlite:///{tmp_path}/none.db")
    assert result.exit_code == 2
    assert "There is no study 'none-such'" in result.output


# --- in a browser


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A page in a browser that can reach no network, all plots drawn; its messages in ``page.messages``."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1200, "height": 900}, offline=True, color_scheme="light")
        page = context.new_page()
        page.set_default_timeout(180_000)
        page.messages = []
        page.on("console", lambda message: page.messages.append(message.text))
        page.on("pageerror", lambda error: page.messages.append(str(error)))
        page.goto(f"file://{path}")
        drawn(page)
        yield page
        browser.close()


@pytest.fixture(params=["proposal"])
def page(request: pytest.FixtureRequest, proposed: Path) -> Iterator[Any]:
    """The report of a proposal, of the runs of a tune, or of what a surrogate learned, as a test requests it."""
    makers = {"proposal": lambda folder: folder / "report.html", "runs": tuned, "learned": learned}
    made = makers[request.param](proposed)
    with opened(Path(shutil.copy(made, proposed / "seen.html"))) as page:
        yield page


def tuned(folder: Path) -> Path:
    """The page of three runs of a table."""
    runs = pd.read_csv(ROOT / "tests" / "data" / "recorded_runs.csv").query("source == 'internevo'")
    runs.to_csv(folder / "runs.csv", index=False)
    (folder / "tuned.yaml").write_text(
        "model: {num_layers: 32, hidden_size: 4096, ffn_hidden_size: 11008, num_attention_heads: 32, "
        "num_query_groups: 32, vocab_size: 103168, gated_mlp: true, tied_embeddings: false}\n"
        "training: {seq_length: 2048, global_batch_size: 512, framework: internevo}\n"
        "cluster: {gpu: a100-sxm4-80gb, nodes: 8, gpus_per_node: 8}\n"
    )
    words = ("--launcher", "replay", "--table", folder / "runs.csv", "--budget", 3, "--storage", "none")
    result = run("tune", folder / "tuned.yaml", *words, "--report", folder / "tuned.html")
    assert result.exit_code == 0, result.output
    return folder / "tuned.html"


def learned(folder: Path) -> Path:
    """The page of the surrogate that is shipped."""
    result = run("report", ROOT / "models" / "default", "--out", folder / "learned.html")
    assert result.exit_code == 0, result.output
    return folder / "learned.html"


def drawn(page: Any) -> None:
    page.wait_for_function("document.documentElement.dataset.drawn === 'all'")


UNDRAWN = "[...document.querySelectorAll('.figure:not([hidden])')].filter(f => !f.querySelector('.main-svg'))"


@pytest.mark.parametrize("page", ["runs"], indirect=True)
def test_every_plot_of_a_tune_is_drawn_in_both_colours_without_a_message(page: Any) -> None:
    assert page.locator(".figure").count() == 3
    page.get_by_role("button", name="Switch between light and dark").click()
    drawn(page)
    assert page.evaluate(f"{UNDRAWN}.map(f => f.id)") == []
    assert page.locator("#figure-against-iteration_time_s .textpoint").count() >= 2
    assert page.messages == []


def test_every_plot_is_drawn_without_a_message(page: Any) -> None:
    assert page.evaluate(f"{UNDRAWN}.map(f => f.id)") == []
    assert page.locator("#figure-passes .trace").count() >= 3
    assert page.messages == []


def test_another_plan_is_chosen_by_the_keyboard(page: Any) -> None:
    before = page.locator("#figure-passes").inner_html()
    shown = page.locator("input[name=plan]:checked")
    assert (chosen := shown.get_attribute("value")) == page.locator(".node:visible").get_attribute("data-plan")
    shown.focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_function("b => document.getElementById('figure-passes').innerHTML !== b", arg=before)
    assert page.locator(".node:visible").get_attribute("data-plan") == shown.get_attribute("value") != chosen


def test_a_closer_look_shows_passes_one_by_one(page: Any) -> None:
    page.get_by_role("button", name="Its start").click()
    low, high = page.evaluate("document.getElementById('figure-passes').layout.xaxis.range")
    letter = page.locator("input[name=plan]:checked").get_attribute("value")
    plans = page.evaluate("JSON.parse(document.getElementById('data').textContent).plans")
    whole = plans[letter]["passes"]["iteration_s"]
    assert (low, high) == (0, pytest.approx(0.15 * whole))


FAINT = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const bytes = (text) => {  // of any notation of a colour, with its opacity from 0 to 1
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].map((v, i) => i === 3 ? v / 255 : v);
  };
  const light = (rgb) => rgb.slice(0, 3).map(v => v / 255)
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const over = (top, ground) => top.slice(0, 3).map((v, i) => v * top[3] + ground[i] * (1 - top[3]));
  const parents = (element) => element ? [...parents(element.parentElement), element] : [];
  const found = new Set(), texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const words = texts.currentNode.textContent.trim(), element = texts.currentNode.parentElement;
    const style = getComputedStyle(element), svg = element.ownerSVGElement;
    if (!words || /SCRIPT|STYLE/.test(element.tagName) || !element.getClientRects().length) continue;
    const ground = parents(svg ? svg.parentElement : element).map((one) => bytes(getComputedStyle(one).backgroundColor))
      .reduce((below, top) => over(top, below), [255, 255, 255]);
    const shown = parents(element).reduce((share, one) => share * getComputedStyle(one).opacity, 1);
    if (shown === 0) continue;
    const ink = bytes(svg ? style.fill : style.color);
    const [a, b] = [over([...ink.slice(0, 3), ink[3] * shown], ground), ground].map(light);
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) found.add(`${words.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return [...found];
}
"""
CLIPPED = """
() => [...document.querySelectorAll("html, th, td, strong, .label, .note, caption, h1, h2, p, li, dd, pre, .scroll")]
  .filter((one) => one.clientWidth > 0 && one.scrollWidth > one.clientWidth + 1)
  .map((one) => `${one.tagName} ${one.className}: ${one.textContent.trim().slice(0, 40)}`)
"""
PAGES = pytest.mark.parametrize("page", ["proposal", "runs", "learned"], indirect=True)


@PAGES
def test_every_text_of_a_page_and_its_charts_stands_out_from_its_ground_as_wcag_aa_wants(page: Any) -> None:
    assert page.evaluate(FAINT) == []
    page.get_by_role("button", name="Switch between light and dark").click()
    drawn(page)
    assert page.evaluate(FAINT) == []
    page.add_style_tag(content="p.lead { color: var(--line) }")
    assert len(page.evaluate(FAINT)) == 1  # so that it can fail


@PAGES
def test_nothing_of_a_page_is_clipped_or_needs_a_scroll_bar_from_a_phone_to_a_wide_screen(page: Any) -> None:
    for width in (400, 800, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(200)  # until charts have their new width
        assert page.evaluate(CLIPPED) == [], width


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("proposal", ("Recommended", "dp=", "What starts it", "against the fastest", "90 %:", "What would change it")),
        ("runs", ("Best measured", "dp=", "predicted", "off by", "What starts it")),
        ("learned", ("Learned from", "rows", "Physics alone", "In their 90 % interval", "What predicts with it")),
    ],
    indirect=["page"],
)
def test_the_first_screen_has_the_decision(page: Any, words: tuple[str, ...]) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    seen = page.evaluate(
        "[...document.querySelectorAll('header *')].filter(e => e.getBoundingClientRect().bottom <= innerHeight)"
        ".map(e => e.textContent).join(' ')"
    )
    assert [one for one in words if one not in seen] == []


def test_a_plan_is_copied_by_its_button(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("button.copy").first.click()  # of the next command
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith("jointopt export ")
    page.locator("#run details[open] button.copy").first.click()
    page.wait_for_function("navigator.clipboard.readText().then(text => text.startsWith('dp='))")


def test_on_paper_it_is_light_and_nothing_is_folded(page: Any) -> None:
    page.get_by_role("button", name="Switch between light and dark").click()
    drawn(page)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.locator("details:not([open])").count() == 0
    assert len(page.pdf()) > 50_000

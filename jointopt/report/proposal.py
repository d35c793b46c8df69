"""The answer of ``propose``: the Pareto-optimal plans, as a table of about 20 lines with what the search did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from jointopt.core.atomic_write import write_whole
from jointopt.core.errors import UsageError
from jointopt.core.facts import Assumption
from jointopt.core.quote import html_text, our_command
from jointopt.core.schema import COLUMNS, DEGREES, LAYOUT_COLUMNS, NEUTRAL, POWER_LIMIT, STAGE_LAYERS, Columns, Ints
from jointopt.core.secrets import masked
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import job_mapping
from jointopt.jobs.objectives import OBJECTIVES, distinguishing, objective_words
from jointopt.jobs.plans.stages import offered_splits
from jointopt.jobs.plans.text import PLAN_KEYS
from jointopt.jobs.reading import is_whole, quoted_value
from jointopt.physics.site import with_site
from jointopt.physics.throughput import with_rates
from jointopt.report.alternatives import (
    AlternativePlan,
    JointSavings,
    fastest_iteration_words,
    joint_words,
    published_plan_lines,
    under_limits,
)
from jointopt.report.decision import Decision
from jointopt.report.doubts import OpenSetting, doubt_lines, plan_doubts, reasons_of, unshown_lines, wider_lines
from jointopt.report.plans import (
    LayoutSummary,
    basis_lines,
    compared_lines,
    entry_with_rates,
    layout_lines,
    plan_frame,
    predicted_table,
    probability_of_fitting,
    rate_words,
    short_plan,
    shows_site,
    site_table,
    tight_lines,
)
from jointopt.report.tables import (
    Block,
    Result,
    json_text,
    markdown,
    paragraphs,
    pick,
    plan_entries,
    result_text,
    study_lines,
)
from jointopt.surrogate.intervals import RESULTS
from jointopt.surrogate.memory import FEASIBLE

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from jointopt.frameworks.exported import Exported
    from jointopt.report.comparison import Compared
    from jointopt.report.explanation import Explanation
    from jointopt.report.page.choice import ProposalReport
    from jointopt.report.selection import Selection
    from jointopt.surrogate.job_model import JobModel


ROWS_FOR_PEOPLE = 20
LAYOUTS_FOR_PEOPLE = 5
REASONS_FOR_PEOPLE = 8
METHODS = {"exact": "the exact search", "local": "clocks of single stages", "nsga2": "NSGA-II"}
_BILLION = 1e9
FILES = ("proposal.json", "front.csv", "proposal.txt")
RECORD = "record.csv.gz"
WRITTEN = (*FILES, RECORD)
RECOMMENDED = "The recommended plan's"
NOT_EXPECTED = "NOT FEASIBLE: none of these plans is expected to fit in memory; they are those that come nearest."


@dataclass(frozen=True, repr=False)
class Proposal(Result):
    """The Pareto-optimal plans of one job.

    ``front`` holds the plan columns, ``iteration_time_s`` (s), ``energy_j`` (J, all GPUs), ``avg_power_w`` (W per
    GPU), ``peak_memory_gib`` (GiB, worst GPU), each also with ``_low`` and ``_high`` (90 % interval),
    ``fit_probability`` (that it fits in memory) and ``in_domain`` (bool); it is sorted by time. ``reference`` has the
    same columns and one row: the fastest plan with every clock at its maximum; none where no such plan is feasible.
    """

    job: Job
    seed: int
    surrogate: str  # name of the surrogate, or "none" for physics alone
    considered: int  # combinations of the joint space's layout columns before any rule
    layouts: int  # distinct layouts that the rules allow
    feasible_layouts: int  # of these, the ones that are searched: feasible ones, unless tight ones were asked for
    infeasible: Mapping[str, int]  # reason -> layouts dropped for it
    front: Columns
    reference: Columns
    informed_by: Mapping[str, int] = field(default_factory=dict)  # measured runs that corrected it, by place
    baseline: str = ""  # what runs today, where that is the reference, as it was given
    reference_breaks: tuple[str, ...] = ()  # constraints that the reference breaks, one sentence each
    covered_plans: int = 0  # plans of the joint space that the answer speaks for
    evaluated_plans: int = 0  # plans whose time and energy were really computed
    searched: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # method -> evaluated, added, hypervolume
    study_name: str | None = None
    storage: str | None = None  # Optuna storage URL
    record: Columns | None = None  # every plan that the search evaluated
    seconds: Mapping[str, float] = field(default_factory=dict)  # phase -> wall seconds
    beside: tuple[AlternativePlan, ...] = ()  # published plans, and the best inside of what people run
    joint: JointSavings | None = None  # what it buys over two steps; None where energies are not known
    assumed: tuple[Assumption, ...] = ()  # what no source states, and what stands in
    best_layouts: tuple[LayoutSummary, ...] = ()  # the fastest splits of the GPUs, and those of the front
    learned: tuple[str, ...] = ()  # sentences: why a few runs count in part
    hangs_on: tuple[OpenSetting, ...] = ()  # what the job leaves open, by how much it moves the recommended plan's time
    domain_doubts: tuple[str, ...] = ()  # sentences: why plans of the front are outside of what was checked
    source: str = ""  # how a shell names the job: its file, or options; blank: not known
    next_command: Mapping[str, str] | None = None  # that starts the recommended plan, a note; None: source unknown
    model: JobModel | None = field(default=None, repr=False, compare=False)  # that predicted it
    # a verb by its name, for what is asked of the proposal and its plans
    verb: Callable[[str], Callable[..., Any]] | None = field(default=None, repr=False, compare=False)

    def document(self) -> dict[str, Any]:
        """The job as its file would say it, the search, the front by time, and the reference."""
        front, reference = (plan_entries(with_rates(self.job, plans)) for plans in (self.front, self.reference))
        decision = self.decision
        return pick(self, "job=job.name seed surrogate informed_by learned assumed seconds") | {
            "job_file": job_mapping(self.job),
            "feasible": self.feasible,
            "space": pick(self, "considered layouts feasible_layouts infeasible covered_plans evaluated_plans")
            | ({} if self.feasible else {"feasible_layouts": 0, "searched_layouts": self.feasible_layouts}),
            "searched": self.searched,
            "front": front,
            "layouts": self.best_layouts,
            "joint": self.joint,
            "beside": [asdict(plan) for plan in self.beside],
            "reference": next(iter(reference), None),
            "baseline": self.baseline,
            # of the recommended plan, then why plans are outside of what was checked
            "doubts": [*plan_doubts(self.job, decision.plan, self.hangs_on, RECOMMENDED), *self.domain_doubts],
            "hangs_on": self.hangs_on,
            "next": self.next_command,
            "decision": decision,
            "study": pick(self, "name=study_name storage"),
        }

    @property
    def feasible(self) -> bool:
        """Whether plans of the front are likelier to fit in memory than not: all of them then are."""
        return bool(np.min(self.front.get("fit_probability", 1.0)) >= FEASIBLE)

    @property
    def decision(self) -> Decision:
        """The recommended plan, and what it gives against the reference."""
        study = (self.study_name, self.storage) if self.study_name and self.storage else None
        return Decision(
            self.job, self.front, self.reference, self.surrogate, self.baseline, self.reference_breaks, self.hangs_on,
            self.next_command, study, fastest_iteration_words(self.joint.document()) if self.joint else "",
        )  # fmt: skip

    def to_frame(self) -> pd.DataFrame:
        """The front with throughput and what the site pays, columns as in a measurement table.

        Returns
        -------
        DataFrame
            One row for each plan, by time; units stand in the names of the columns.
        """
        return plan_frame(with_rates(self.job, self.front))

    def markdown(self) -> str:
        """The front as a table in Markdown: what its plans differ in or have that is not usual, and the predictions."""
        return markdown(self._shown_frame())

    def _shown_frame(self) -> pd.DataFrame:
        """The front with the columns that people are shown."""
        frame = self.to_frame()
        usual = {"ep": 1, "vpp": 1} | {name: COLUMNS[name].decode(value) for name, value in NEUTRAL.items()}
        layout = [n for n in LAYOUT_COLUMNS if n in DEGREES or (n in frame and (frame[n] != usual.get(n)).any())]
        wanted = (*layout, "stage_clock_mhz", POWER_LIMIT, *RESULTS, "tokens_per_s_per_gpu", "mfu", "tokens_per_j")
        return frame[[name for name in wanted if name in frame]]

    def _repr_html_(self) -> str:
        """The front as a notebook shows it: what it is of, and its plans."""
        frame = self._shown_frame().iloc[rows_along_front(self.front, ROWS_FOR_PEOPLE)]
        return f"<pre>{html_text(repr(self))}</pre>{frame.to_html(index=False, float_format='{:.5g}'.format, border=0)}"

    def plot(self) -> go.Figure:
        """The front as a Plotly figure: by layout, with the two-step answer and the intervals of chosen plans.

        Returns
        -------
        plotly.graph_objects.Figure
            Energy over time.

        Raises
        ------
        UsageError
            Where energies are not known, so that the front is one plan.
        """
        from jointopt.report.plot import front_plot

        if not np.isfinite(self.front["energy_j"]).all():
            raise UsageError("The power of this GPU is unknown: the front is a single plan, with nothing to plot.")
        return front_plot(self.to_dict())

    def blocks(
        self, *, show_all: bool = False, top: int | None = None, layouts: int = LAYOUTS_FOR_PEOPLE, brief: bool = False
    ) -> Iterator[Block]:
        """The decision alone where ``brief``; else what was searched, a table of plans, costs, a summary, what is next.

        The table has the best ``layouts`` and those of the front, each with its clocks condensed; the ``top`` fastest
        plans of the front, or all of it.
        """
        if brief:
            yield from self.decision.blocks()
            return
        yield [*_title(self), doubt_lines(self.job, self.decision.plan, self.hangs_on, RECOMMENDED)]
        by_layout = self.best_layouts and not (show_all or top or self.job.goals != OBJECTIVES)
        table = _layout_lines(self, layouts) if by_layout else _plan_lines(self, show_all, top)
        yield [*table, published_plan_lines(self.beside, self.feasible_layouts)]
        yield [_site_lines(self)]
        yield _summary(self)
        if self.next_command:
            decision = self.decision
            yield [f"Recommended: plan {decision.row + 1:,} of the front, {decision.reason}.", decision.start_lines()]

    def report(self) -> ProposalReport:
        """The proposal as a page.

        Returns
        -------
        ProposalReport
            ``.write("report.html")`` writes one HTML file that needs no network.

        Raises
        ------
        UsageError
            For a proposal that was put together without the model that predicts its plans.
        """
        return self.ask("report_of", self.to_dict(), self.predicting_model)  # type: ignore[no-any-return]

    @property
    def predicting_model(self) -> JobModel:
        """The model that predicted the plans; UsageError where the proposal was put together without it."""
        if self.model is None:
            raise UsageError("This needs the model that predicted the proposal; take one that propose returned.")
        return self.model

    def ask(self, verb: str, *given: Any, **options: Any) -> Any:
        """The answer of a verb of `jointopt.workflows`; UsageError as for `predicting_model`."""
        if self.verb is None:
            raise UsageError("This needs what propose returns; a proposal that was put together has no verbs.")
        return self.verb(verb)(*given, **options)

    def select(self, *, deadline: float | None = None, **limits: Any) -> Selection:
        """The best plan of the front under limits, as `jointopt.select` chooses it of stored ones.

        Parameters
        ----------
        deadline : float, optional
            Seconds of an iteration at most; another word for ``max_iteration_time_s``.
        **limits
            ``max_iteration_time_s`` (s), ``max_energy_j`` (J of an iteration, all GPUs), ``max_power_w`` (W per GPU),
            ``max_cluster_kw`` (kW of the site), ``objective`` and what else `jointopt.select` takes.

        Returns
        -------
        Selection
            The plan chosen, which limits bind, and what relaxing each would buy.

        Raises
        ------
        InfeasibleError
            Where no plan keeps the limits; it names the closest one.
        """
        if deadline is not None:
            limits["max_iteration_time_s"] = deadline
        job = self.job
        found: Selection = self.ask(
            "select_from", self.front, job=job, source=f"the proposal of {job.name}", surrogate=self.surrogate, **limits
        )
        return found

    def __len__(self) -> int:
        return len(self.front["pp"])

    @overload
    def __getitem__(self, row: int) -> ProposedPlan: ...
    @overload
    def __getitem__(self, row: slice) -> list[ProposedPlan]: ...
    def __getitem__(self, row: int | slice) -> ProposedPlan | list[ProposedPlan]:
        """The plan of a row of the front, from 0, or those of a slice; IndexError beyond it."""
        if isinstance(row, slice):
            return [ProposedPlan(self, one) for one in range(len(self))[row]]
        if not is_whole(row):
            got = quoted_value(row)
            raise UsageError(f"A plan of the front is taken by its number, 0 to {len(self) - 1}; got {got}.")
        if not -len(self) <= row < len(self):
            raise IndexError(f"The front has plans 0 to {len(self) - 1}; got {row}.")
        return ProposedPlan(self, int(row) % len(self))

    @property
    def recommended(self) -> ProposedPlan:
        """The plan that is recommended."""
        return self[self.decision.row]

    def write(self, folder: Path) -> None:
        """Writes ``proposal.json``, ``front.csv`` (columns as in the schema) and ``proposal.txt``.

        Beside them ``record.csv.gz`` holds every plan that the search evaluated, where the proposal has them.

        Parameters
        ----------
        folder : Path
            Is made where it does not exist.
        """
        from jointopt.runs.table import (
            csv_text,  # with pandas
            write_table,
        )

        folder.mkdir(parents=True, exist_ok=True)
        contents = (json_text(self.document()), csv_text(self.to_frame()), self.text(show_all=True))
        for name, text in zip(FILES, contents, strict=True):
            write_whole(folder / name, text.removesuffix("\n") + "\n")
        (folder / RECORD).unlink(missing_ok=True)  # of an earlier proposal
        if self.record is not None:
            write_table(plan_frame(self.record), folder / RECORD)


@dataclass(frozen=True)
class ProposedPlan:
    """One plan of a proposal: ``plan`` (its fields), ``predicted`` (everything the front says of it), and its verbs."""

    proposal: Proposal
    row: int  # of the front, from 0

    @property
    def predicted(self) -> dict[str, Any]:
        """The plan's fields and predictions, as in the document of `propose --json`."""
        return entry_with_rates(self.proposal.job, self.proposal.front, self.row)

    @property
    def plan(self) -> dict[str, Any]:
        """The plan's fields alone, as every verb takes a plan."""
        return {name: value for name, value in self.predicted.items() if name in PLAN_KEYS}

    def export(self, target: str = "", **options: Any) -> Exported:
        """What starts the plan elsewhere.

        Parameters
        ----------
        target : str, optional
            megatron, megatron-bridge, torchtitan, deepspeed, nanotron, accelerate, slurm or kubernetes; the job's own
            framework by default.
        **options
            As `jointopt export` takes them: ``version``, ``purpose``, ``program``, ``arguments``.

        Returns
        -------
        Exported
            ``text()`` is the script; ``to_dict()`` has words, environment and files.

        Raises
        ------
        ExportError
            Where the target has no words for the plan; it names the point.
        InfeasibleError
            Where the plan is likelier not to fit in memory than to fit, unless ``allow_tight``.
        """
        found: Exported = self.proposal.ask("export", self.proposal.job, self.plan, target, **options)
        return found

    def explain(self, **options: Any) -> Explanation:
        """Time, energy and memory of the plan taken apart.

        Parameters
        ----------
        **options
            ``ranked``, as of `jointopt.explain`.

        Returns
        -------
        Explanation
            As of `jointopt.explain`.
        """
        return self.proposal.ask("explain", self.proposal.predicting_model, self.plan, **options)  # type: ignore[no-any-return]

    def compare(self, *others: ProposedPlan | Mapping[str, Any] | str) -> Compared:
        """The plan and others side by side, by part of time, energy and memory.

        Parameters
        ----------
        *others : ProposedPlan, mapping or str
            One to seven plans.

        Returns
        -------
        Compared
            As of `jointopt.compare`.
        """
        plans = [other.plan if isinstance(other, ProposedPlan) else other for other in (self, *others)]
        return self.proposal.ask("compare", self.proposal.predicting_model, plans)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        """The plan in words, with time and energy."""
        found = self.predicted
        energy = "" if found["energy_j"] is None else f", {result_text('energy_j', found['energy_j'])}"
        words = short_plan(self.proposal.front, self.row)
        return f"{words}: {result_text('iteration_time_s', found['iteration_time_s'])}{energy}"

    def _repr_html_(self) -> str:
        return f"<pre>{html_text(repr(self))}</pre>"


def _is_among(plan: Mapping[str, Any], others: list[dict[str, Any]]) -> bool:
    """Whether one of the other entries is the same plan, with as many spares."""
    return any(all(plan.get(key) == other.get(key) for key in (*PLAN_KEYS, "spares")) for other in others)


def rows_along_front(front: Columns, count: int, pair: Sequence[str] = OBJECTIVES) -> Ints:
    """Indices (at most ``count``) spread evenly along the front as it is drawn: log time against log energy.

    The two ends are always kept; ``front`` is sorted by time. ``pair``: the columns of both.
    """
    if len(front["pp"]) <= count:
        return np.arange(len(front["pp"]))
    drawn = np.log([front[name] for name in pair])
    extent = np.ptp(drawn, axis=1, keepdims=True)
    steps = np.diff(drawn / np.where(extent > 0, extent, 1.0), axis=1)
    travelled = np.concatenate([[0.0], np.cumsum(np.hypot(*steps))])
    wanted = np.linspace(0.0, travelled[-1], count)
    return np.unique(np.abs(travelled[:, np.newaxis] - wanted).argmin(axis=0))


def _title(proposal: Proposal) -> list[str]:
    """Sentences on the job and on what was searched for."""
    job, training, cluster = proposal.job, proposal.job.training, proposal.job.cluster
    sequences = "sequence" if training.global_batch_size == 1 else "sequences"
    return [
        f"{job.name}: {job.model_words}, {training.global_batch_size:,} {sequences} of {training.seq_length:,} tokens "
        f"in {training.precision_words}, {training.software}, on {cluster.nodes} x {cluster.gpus_per_node} "
        f"{cluster.gpu.id}. "
        f"Plans that no other beats in {objective_words(job.objectives)}: {len(proposal.front['pp']):,}.",
        *([] if proposal.feasible else [NOT_EXPECTED]),
        *([f"Assumed {job.assumed_clocks}."] if job.assumed_clocks else []),
    ]


def _plan_lines(proposal: Proposal, show_all: bool, top: int | None) -> Iterator[str | list[str]]:
    """The table of the reference and of plans of the front: all, the ``top`` fastest or some, and its legend."""
    job, total = proposal.job, len(proposal.front["pp"])
    between = "lie between these"
    if show_all or top:
        rows, between = np.arange(total)[:top], "follow" if top else between
    elif len(job.goals) == 2:
        rows = rows_along_front(proposal.front, ROWS_FOR_PEOPLE, job.goals)
    else:
        goals = distinguishing(job.objectives)
        rows = rows_spread_in_goals(with_site(job, proposal.front), goals, ROWS_FOR_PEOPLE)
        between = "are between these, the best in each objective and those farthest from each other"
    reference, front = (with_rates(job, plans) for plans in (proposal.reference, proposal.front))
    first = plan_entries(reference)
    plans = [*first, *(plan for plan in plan_entries(front, rows) if not _is_among(plan, first))]
    marks = ["="] * len(first) + [""] * (len(plans) - len(first))
    table = predicted_table(plans, marks, goals=job.goals)
    yield table
    yield from _legend(proposal, plans, table)
    if total > len(rows):
        yield f"{total - len(rows):,} more plans {between}: --all or --json has them."


def _layout_lines(proposal: Proposal, most: int) -> Iterator[str | list[str]]:
    """The table of the ``most`` best layouts and those of the front, and its legend."""
    shown = [layout for layout in proposal.best_layouts if layout.rank <= most or layout.on_front]
    table, plans = layout_lines(plan_entries(with_rates(proposal.job, proposal.reference)), shown)
    total = len(proposal.front["pp"])
    yield table
    yield from _legend(proposal, plans, table)
    yield (
        f"Of each layout: its fastest plan, its knee and its least energy. The front has {total:,} "
        f"plan{'s' * (total != 1)}: --all prints {'them' if total != 1 else 'it'}, --layouts N more layouts."
    )


def _legend(proposal: Proposal, plans: Sequence[Mapping[str, Any]], drawn: Sequence[str]) -> Iterator[str]:
    """Sentences on the marks and figures of a table of plans as ``drawn``."""
    if len(proposal.reference["pp"]):
        fits = probability_of_fitting(plans[0]) >= FEASIBLE
        usual = f"the fastest plan that {'fits' if fits else 'comes near to fitting'}, at the GPU's maximum clock"
        yield f"= {f'the baseline, {proposal.baseline}' if proposal.baseline else usual}; Δ% is relative to it."
        yield from compared_lines(plans, drawn)
        yield f"  {rate_words(proposal.job, plans[0])}"
    else:
        yield "Δ% is relative to the fastest plan; with all clocks at their maximum none is feasible."
    reasons = reasons_of(plans, proposal.surrogate, proposal.job)
    yield from (*wider_lines(reasons), *unshown_lines(proposal.domain_doubts, reasons), *tight_lines(plans))
    yield from (f"The = row breaks a constraint: {text}" for text in proposal.reference_breaks)


def _site_lines(proposal: Proposal) -> list[str]:
    """The site's costs of the reference, the fastest plan and the one of least energy, where `shows_site`."""
    job, front = proposal.job, proposal.front
    if not shows_site(job) or not np.isfinite(front["energy_j"]).any():
        return []
    ends = {"fastest": 0, "least energy": int(with_site(job, front)["facility_energy_j"].argmin())}
    ends = ends if len(front["pp"]) > 1 else {"front": 0}  # the best in one objective, whichever that is
    references = plan_entries(proposal.reference)  # which the line of = is
    rows = {name: row for name, row in ends.items() if not _is_among(plan_entries(front, [row])[0], references)}
    time_s, energy_j = (
        np.concatenate([proposal.reference[name], front[name][list(rows.values())]]) for name in OBJECTIVES
    )
    return site_table(job, ["="] * len(references) + list(rows), time_s, energy_j)


def _summary(proposal: Proposal) -> Iterator[str | list[str]]:
    """The size of the search, its methods, what two steps would give, what was dropped, and what all that rests on."""
    job, count = proposal.job, f"{proposal.feasible_layouts:,}"
    fitting = (
        f"{count} of them feasible" if proposal.feasible else f"none of them feasible, the nearest {count} searched"
    )
    yield (
        f"Joint space: {proposal.considered:,} combinations, {proposal.layouts:,} layouts{under_limits(job)}, "
        f"{fitting}; {proposal.covered_plans:,} plans covered, "
        f"{proposal.evaluated_plans:,} evaluated, {sum(proposal.seconds.values()):.1f} s."
    )
    searched, front = proposal.searched, proposal.front
    added = [
        f"{METHODS[method]} {gain['added']:,}"
        + f" ({gain['hypervolume']:z.2%} of the hypervolume)" * (gain["added"] > 0)
        for method, gain in searched.items()
    ]
    whole = sum(gain["added"] for gain in searched.values()) == len(front["pp"])  # else it has more goals than shown
    of = "" if whole else f" of {objective_words(job.goals)}, of which these are the best,"
    text = f"Plans of the front{of} by method: {', '.join(added)}{'' if 'nsga2' in searched else '; no trials needed'}."
    if job.search.stage_layers is None and "stage_layers" in front:
        plans = list(zip(*(front[name].tolist() for name in ("pp", "vpp", "stage_layers")), strict=True))
        listed = {(pp, vpp): offered_splits(job, pp, vpp) for pp, vpp, _ in plans}
        split = sum(code > 0 and STAGE_LAYERS.numbers(code) not in listed[pp, vpp] for pp, vpp, code in plans)
        text += f" {split:,} of them have a split of the layers that was searched beside the listed ones." * (split > 0)
    yield text
    yield redundant_objective_words(job.objectives)
    yield joint_words(proposal.joint.document()) if proposal.joint else ""
    common = sorted(proposal.infeasible.items(), key=lambda item: -item[1])
    shown, others = common[:REASONS_FOR_PEOPLE], common[REASONS_FOR_PEOPLE:]
    shown += [(f"for {len(others)} other reasons", sum(count for _, count in others))] if others else []
    if shown:
        width = max(len(f"{count:,}") for _, count in shown)
        yield "Dropped, by the first rule broken:"
        yield paragraphs((f"  {count:>{width},}  {reason}" for reason, count in shown), " " * (width + 4))
    yield basis_lines(proposal.assumed, proposal.informed_by)
    yield from proposal.learned
    if proposal.storage and proposal.study_name:
        select = our_command("select", proposal.study_name, storage=proposal.storage)
        yield [*study_lines(proposal.study_name, proposal.storage), f"  {select}"]


def rows_spread_in_goals(front: Columns, goals: Sequence[str], count: int) -> Ints:
    """Indices (at most ``count``) of the best plan in each goal, then of what is farthest from all chosen, sorted.

    Distances are of logarithms, each over the front's extent.
    """
    drawn = np.log(np.column_stack([front[name] for name in goals]))
    extent = np.ptp(drawn, axis=0)
    drawn = drawn / np.where(extent > 0.0, extent, 1.0)
    chosen = list(dict.fromkeys(drawn.argmin(axis=0).tolist()))
    while len(chosen) < min(count, len(drawn)):
        gaps = np.linalg.norm(drawn[:, None] - drawn[chosen][None], axis=2).min(axis=1)
        chosen.append(int(gaps.argmax()))
    return np.unique(chosen)


def redundant_objective_words(objectives: Sequence[str]) -> str:
    """A sentence on the objectives that do not distinguish plans, blank where there are none."""
    idle = [name for name in objectives if name not in distinguishing(objectives)]
    if not idle:
        return ""
    others = objective_words([name for name in objectives if name in OBJECTIVES] or distinguishing(objectives)[:1])
    rises = "rises" if len(idle) == 1 else "rise"
    return f"{objective_words(idle)} {rises} with {others}: no plan is better in that alone, so it is not searched for."


@dataclass(frozen=True, repr=False)
class CheckedJob(Result):
    """The answer of ``check``: a job, how many layouts it has and how many may fit in memory, and what was assumed."""

    rows = "checked"
    job: Job
    considered: int
    layouts: int
    fitting: int
    dropped: Mapping[str, int]  # reason -> layouts
    assumed: tuple[Assumption, ...]

    def document(self) -> dict[str, Any]:
        """The job as its file would say it, and the counts."""
        counts = pick(self, "job=job.name considered layouts fitting")
        return counts | pick(self, "dropped assumed") | {"job_file": job_mapping(self.job), "checked": [counts]}

    def blocks(self) -> Iterator[Block]:
        """The model, the batch, the cluster and the layouts, a sentence each, and what is assumed."""
        model, training, cluster = self.job.model, self.job.training, self.job.cluster
        sizes = f"{model.parameters / _BILLION:,.4g} billion parameters"
        if model.is_moe:
            sizes += f", {model.active_parameters / _BILLION:,.4g} of them active"
        if training.frozen:
            sizes += f", frozen beside adapters of rank {training.lora_dim} (LoRA) of {', '.join(training.adapted)}"
        tokens = training.global_batch_size * training.seq_length
        yield [
            f"{self.job.name}: {model.name}, {sizes}.",
            f"{training.global_batch_size:,} sequences of {training.seq_length:,} tokens ({tokens:,} in all) per "
            f"iteration, in {training.precision_words}, {training.attention}, {training.software}.",
            f"{cluster.nodes:,} x {cluster.gpus_per_node} {cluster.gpu.id} ({cluster.num_gpus:,} GPUs of "
            f"{cluster.gpu.memory_gib:g} GiB), {cluster.intra_node_gbytes_per_s:g} GB/s in a node"
            + (f", {cluster.inter_node_gbytes_per_s:g} GB/s between nodes." if cluster.nodes > 1 else "."),
            f"{self.layouts:,} layouts keep the rules, {self.fitting:,} of them may fit in memory; "
            f"{len(self.job.search.clock_mhz)} clocks; objectives {' and '.join(self.job.objectives)}.",
        ]
        yield [basis_lines(self.assumed, {})]


@dataclass(frozen=True)
class WorkerSummary:
    """The answer of ``work``: what one worker evaluated, and the front of the study when it left (sorted by time)."""

    study_name: str
    evaluated: int
    failed: int
    finished: int  # of the study, by all workers
    front: Columns
    goals: tuple[str, ...] = OBJECTIVES

    def text(self, storage: str) -> str:
        """The share of this worker, the ends of the front, and the command that opens the study."""
        front, size = self.front, len(self.front["energy_j"])
        failed = f", {self.failed:,} could not be evaluated" if self.failed else ""
        by = "" if self.goals == OBJECTIVES else f" of {objective_words(self.goals)}"
        study = f"the study has {self.finished:,}, {size:,} of them on the front{by}"
        lines = [f"{self.evaluated:,} plans evaluated here{failed}; {study}."]
        best = {0, size // 2, size - 1}
        if size and self.goals != OBJECTIVES:
            best = {int(front[name].argmin()) for name in self.goals}
        if rows := sorted(best) if size else []:
            lines += predicted_table(plan_entries(front, rows), [""] * len(rows))
        return "\n".join([*lines, *study_lines(self.study_name, masked(storage))])

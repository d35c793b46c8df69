"""The study of what was really run: a trial per run, predicted and measured side by side.

Unlike a finished search (`saving`) it grows while people look at it: a trial is there, and running,
from the moment its run begins. The store holds the measurements; this is a view of them for people.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from jointopt.core.quote import our_command
from jointopt.core.schema import COLUMNS, LAYOUT_COLUMNS, POWER_LIMIT, Columns
from jointopt.core.system import may_be_alive, this_process
from jointopt.jobs.objectives import TIME_ALONE
from jointopt.jobs.plans.text import record_text
from jointopt.search.studies.display import PLOT, note_attributes, pieces
from jointopt.search.studies.storage import made_study, numbered, on_studies, open_storage, set_attributes
from jointopt.search.studies.trials import CONSTRAINTS, PLAN, UNLISTED, distributions_of, is_ours

MEASURED = (
    "status", "iteration_time_s", "energy_j", "avg_power_w", "peak_power_w", "peak_memory_gib", "temperature_c",
    "notes",
)  # fmt: skip
_UNITS = {name: COLUMNS[name].unit for name in MEASURED if COLUMNS[name].unit} | {"avg_power_w": "W per GPU"}
KIND = "measured runs"  # attribute `kind` of such a study
_GOING, _PROCESS, _LEFT = "going", "process", "left"
_EXPLANATION = (
    "Each trial is a plan that was run for real. Attributes `predicted_...` are what was expected before the run (with "
    "the ends of the 90 % interval), the others what was measured; a trial that failed says why in `notes`. Runs that "
    "broke a limit of the job break the constraint `violation`."
)


class MeasuredStudy:
    """A study that minimises what runs measured of one job; it is made where it is missing, else continued.

    ``plans`` are all plans that may become trials, ``text`` (Markdown) says what the job is, and ``job`` is its file.
    UsageError where the database cannot be used.
    """

    def __init__(
        self, url: str, name: str, job_hash: str, objectives: tuple[str, ...], plans: Columns, text: str = "",
        job: str = "",
    ) -> None:  # fmt: skip
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.url, self._base, self._hash = url, f"{name}-{job_hash[:8]}-measured", job_hash
        self._text, self._job = text, job
        self._moved: dict[int, int] = {}  # ids of trials, before and after their study was made again
        clock_mhz = np.nanmax(plans["stage_clock_mhz"], axis=1)
        self._distributions = distributions_of(
            {name: plans[name] for name in (*LAYOUT_COLUMNS, POWER_LIMIT) if name in plans} | {"clock_mhz": clock_mhz}
        )
        self.objectives = objectives
        self._open()

    @on_studies
    def _open(self) -> None:
        self._storage = open_storage(self.url)
        self._study = self._load_or_make()
        for trial in self._trials():  # those whose process was killed do not run any more
            process = trial.user_attrs.get(_PROCESS, "")
            if trial.state == TrialState.RUNNING and not (process and may_be_alive(process)):
                why = "the process that waited for the run was killed"
                self.end_without_result(self._trial_id(trial), why, left=True)

    @property
    def name(self) -> str:
        """The study's name."""
        return self._study.study_name

    @property
    def _study_id(self) -> int:
        return self._storage.get_study_id_from_name(self.name)

    @property
    @on_studies
    def unfinished(self) -> dict[str, Any] | None:
        """What a process that has ended wanted to continue, by `set_unfinished`; None where nothing is left."""
        message: dict[str, Any] | None = self._study.user_attrs.get(_GOING)
        return None if message is None or (message[_PROCESS] and may_be_alive(message[_PROCESS])) else message

    @on_studies
    def set_unfinished(self, message: Mapping[str, Any] | None, paused: bool = False) -> None:
        """Remember the state (JSON values) from which this work can be continued; None: nothing is to be continued.

        ``paused``: another process may continue it while this one lives.
        """
        process = "" if paused else this_process()
        self._study.set_user_attr(_GOING, None if message is None else {**message, _PROCESS: process})

    @on_studies
    def has_trial_of(self, plan: Mapping[str, Any]) -> bool:
        """Whether a trial of ``plan`` (a record of `plan_records`) runs, or has ended other than by an interrupt."""
        mine = record_text(plan)
        known = [trial.user_attrs for trial in self._trials()]
        return any(run.get(PLAN) == mine and run.get("status") != "interrupted" for run in known)

    @on_studies
    def abandoned(self, origin: str) -> list[FrozenTrial]:
        """Trials of ``origin`` whose process was killed and whose plans have no later trial; runs may go on."""
        trials = self._trials()
        last = {trial.user_attrs.get(PLAN): trial for trial in trials}
        return [t for t in last.values() if t.user_attrs.get(_LEFT) and t.user_attrs.get("origin") == origin]

    @on_studies
    def begin(self, plan: Mapping[str, Any], predicted: Mapping[str, float], **more: Any) -> int:
        """Make a running trial and return its id. ``predicted``: columns, ``more``: further attributes."""
        known = {f"predicted_{name}": value for name, value in predicted.items() if math.isfinite(value)}
        same = {PLAN: record_text(plan), _PROCESS: this_process()}
        params = {name: plan[name] for name in (*LAYOUT_COLUMNS, POWER_LIMIT) if name in plan and name not in UNLISTED}
        params["clock_mhz"] = float(max(plan["stage_clock_mhz"]))
        trial = optuna.trial.create_trial(
            state=TrialState.RUNNING, params=params, user_attrs={**same, **more, **known},
            distributions={name: self._distributions[name] for name in params},
        )  # fmt: skip
        running = (one for one in self._trials() if one.state == TrialState.RUNNING)
        there = [one for one in running if same.items() <= one.user_attrs.items()]
        if there:  # made before a connection was cut
            return self._trial_id(there[-1])
        return self._storage.create_new_trial(self._study_id, template_trial=trial)

    @on_studies
    def end(self, trial_id: int, row: Mapping[str, Any], broken: tuple[str, ...] = (), **more: Any) -> None:
        """End the trial with its measurement ``row`` (result columns); ``broken``: limits that it did not keep."""
        trial_id = self._moved.get(trial_id, trial_id)
        if self._storage.get_trial(trial_id).state.is_finished():  # before a connection was cut
            return self._draw()
        if row["status"] == "ok":
            trial_id = self._move_to_measured_goals(trial_id, row)
        figures = {name: figure for name in _UNITS if math.isfinite(figure := _number(row.get(name)))}
        words = {name: row[name] for name in MEASURED if isinstance(row.get(name), str) and row[name]}
        for name, value in {**figures, **words, **more}.items():
            self._storage.set_trial_user_attr(trial_id, name, value)
        self._storage.set_trial_system_attr(trial_id, CONSTRAINTS, [float(len(broken))])
        values = [_number(row.get(name)) for name in self.objectives]
        good = row["status"] == "ok" and all(map(math.isfinite, values))
        self._note(trial_id, broken)
        state = TrialState.COMPLETE if good else TrialState.FAIL
        self._storage.set_trial_state_values(trial_id, state, values if good else None)
        self._draw()

    @on_studies
    def end_without_result(self, trial_id: int, why: str, left: bool = False) -> None:
        """End the trial of a run that was interrupted, ``why`` in words; ``left``: its run may go on unwatched."""
        trial_id = self._moved.get(trial_id, trial_id)
        # a connection may have been cut after it ended, and of several starts each ends what a killed one has left
        if self._storage.get_trial(trial_id).state.is_finished():
            return
        with suppress(UpdateFinishedTrialError):
            for name, value in {"status": "interrupted", "notes": why, _LEFT: left}.items():
                self._storage.set_trial_user_attr(trial_id, name, value)
            self._note(trial_id, ())
            self._storage.set_trial_state_values(trial_id, TrialState.FAIL)

    def _load_or_make(self) -> optuna.Study:
        """The study of the job with these objectives, made where there is none; the first such name that is free."""
        facts = {"kind": KIND, "job_hash": self._hash, "objectives": list(self.objectives)}
        for name in numbered(self._base):
            try:
                study = made_study(self._storage, name, self.objectives)
            except optuna.exceptions.DuplicatedStudyError:
                study = optuna.load_study(study_name=name, storage=self._storage)
                if not facts.items() <= study.user_attrs.items():
                    continue
            else:
                for key, value in facts.items():
                    study.set_user_attr(key, value)
                set_attributes(self._storage, name, note_attributes(self._text + _EXPLANATION))
            study.set_user_attr("job", self._job)
            break
        return study

    def _trials(self) -> list[FrozenTrial]:
        """The trials of runs, and none that others added with Optuna."""
        return [trial for trial in self._study.get_trials(deepcopy=False) if is_ours(trial)]

    def _trial_id(self, trial: FrozenTrial) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, trial.number)

    def _move_to_measured_goals(self, trial_id: int, row: Mapping[str, Any]) -> int:
        """The id of the trial in a study of the objectives that ``row`` has measured, made where there is none.

        Only the first success shows whether there is a meter. Where there is none, trials so far move to a study of
        time alone, unless other processes or programs look for theirs here.
        """
        measured = tuple(name for name in self.objectives if math.isfinite(_number(row.get(name)))) or TIME_ALONE
        trials, everyones = self._trials(), len(self._study.get_trials(deepcopy=False))
        if measured == self.objectives or any(t.state == TrialState.COMPLETE for t in trials):
            return trial_id
        elsewhere = (t.state == TrialState.RUNNING and t.user_attrs.get(_PROCESS) != this_process() for t in trials)
        if shared := len(trials) < everyones or any(elsewhere):
            # others will make the same step; what they run, or added with Optuna, stays where they look for it
            trials = [self._storage.get_trial(trial_id)]
            self.end_without_result(trial_id, "shown in the study of what could be measured")
        going, old = self._study.user_attrs.get(_GOING), [self._trial_id(trial) for trial in trials]
        if not shared:
            optuna.delete_study(study_name=self.name, storage=self._storage)
        self.objectives = measured
        self._study = self._load_or_make()
        if not shared:
            self._study.set_user_attr(_GOING, going)
        new = [self._storage.create_new_trial(self._study_id, template_trial=trial) for trial in trials]
        self._moved |= dict(zip(old, new, strict=True))
        for moved, trial in zip(new, trials, strict=True):
            if trial.state.is_finished():  # failed runs: notes are found by the trial's id
                self._note(moved, ())
        return self._moved[trial_id]

    def _note(self, trial_id: int, broken: tuple[str, ...]) -> None:
        """Set the note of a trial, in Markdown: what was expected beside what came out."""
        run = self._storage.get_trial(trial_id).user_attrs
        lines = [f"**{run['status']}**" + (f": {run['notes']}" if run.get("notes") else ""), ""]
        if broken:
            lines += [f"Beyond the job's bound on {', '.join(broken)}.", ""]
        lines += ["| | predicted | 90 % interval | measured | error |", "|---|---|---|---|---|"]
        for name, unit in _UNITS.items():
            ends = (f"predicted_{name}", f"predicted_{name}_low", f"predicted_{name}_high", name)
            predicted, low, high, measured = (run.get(key) for key in ends)
            if predicted is None and measured is None:
                continue
            first, last = ("" if value is None else f"{value:.4g}" for value in (predicted, measured))
            interval = "" if low is None or high is None else f"{low:.4g} to {high:.4g}"
            error = f"{predicted / measured - 1:+z.1%}" if measured and predicted else ""
            lines.append(f"| {name} ({unit}) | {first} | {interval} | {last} | {error} |")
        lines += ["", f"`{our_command('explain', 'JOB', plan=run['plan'])}`", ""]
        set_attributes(self._storage, self.name, note_attributes("\n".join(lines), trial_id))

    def _draw(self) -> None:
        """Draw predicted against measured times, a point per run, with the best so far."""
        name = "iteration_time_s"
        runs = [t.user_attrs | {"number": t.number} for t in self._trials()]
        good = [run for run in runs if run.get("status") == "ok" and run.get(name)]
        numbers, measured = [run["number"] for run in good], [run[name] for run in good]
        expected = [run for run in good if f"predicted_{name}" in run]
        predicted = [run[f"predicted_{name}"] for run in expected]
        above = [t.get(f"predicted_{name}_high", p) - p for t, p in zip(expected, predicted, strict=True)]
        below = [p - t.get(f"predicted_{name}_low", p) for t, p in zip(expected, predicted, strict=True)]
        bars = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
        traces: list[dict[str, Any]] = [
            {"x": [t["number"] for t in expected], "y": predicted, "error_y": bars, "mode": "markers",
             "name": "predicted"},
            {"x": numbers, "y": measured, "mode": "markers", "name": "measured"},
            {"x": numbers, "y": list(itertools.accumulate(measured, min)), "mode": "lines", "name": "best so far",
             "line": {"shape": "hv"}},
        ]  # fmt: skip
        axes = {"xaxis": {"title": {"text": "trial"}}, "yaxis": {"title": {"text": "iteration time (s)"}}}
        layout = {"title": {"text": "Predicted and measured, run by run"}, **axes}
        figure = {"data": [{"type": "scatter", **trace} for trace in traces], "layout": layout}
        set_attributes(self._storage, self.name, pieces(f"{PLOT}measured:", json.dumps(figure)))


def _number(value: Any) -> float:
    return math.nan if value is None or isinstance(value, str) else float(value)

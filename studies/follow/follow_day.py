"""What following a day of power limits and prices buys three jobs of one site, beside simpler ways.

    python studies/follow/follow_day.py [--out FOLDER]

Plays the day of ``day.yaml`` and writes ``results.csv`` (a row per way, step and job), ``table.csv`` (a row per way),
``prices.csv`` (the day by its prices alone) and ``day.png`` into the folder. By default this is the file's own; then
the tables of its README and the figures that pages quote (``docs/figures.json``) are written too. Half a minute.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import yaml

mpl.use("Agg")
import matplotlib.pyplot as plt

import jointopt
from jointopt.studies import figures
from jointopt.studies.figure import COLOURS
from jointopt.studies.marked import replace_between

HERE = Path(__file__).resolve().parent
COMMAND = "python studies/follow/follow_day.py"
RESTS_ON = [figures.GOLDEN.format(table) for table in ("fronts", "plans")]
DAY = yaml.safe_load((HERE / "day.yaml").read_text(encoding="utf-8"))
FAILURE = DAY["failure"]
WAYS = ("followed", "capped alike", "paused by turns")
HOUR_S, DAY_S, NO_LIMIT_KW = 3600.0, 86400.0, 1e6
_ROUNDING = 1e-9


def steps(fails: bool) -> pd.DataFrame:
    """The steps of the day: from and to which hour, the limit, the price, and whether the node is broken."""
    rows = [tuple(row) for row in DAY["hours"]]
    if fails:
        before = max(row for row in rows if row[0] <= FAILURE["hour"])
        rows = sorted({*rows, (FAILURE["hour"], *before[1:])})
    found = pd.DataFrame(rows, columns=["from_h", "limit_kw", "price"])
    found.insert(1, "to_h", [*found["from_h"][1:], 24])
    return found.assign(broken=fails & (found["from_h"] >= FAILURE["hour"]))


class Site:
    """The three jobs: what each does without a limit and in a pause, with all nodes or with one broken."""

    def __init__(self) -> None:
        self.jobs = {False: [jointopt.load_job(name) for name in DAY["jobs"]]}
        nodes = {FAILURE["job"]: {"cluster.nodes": FAILURE["nodes"]}}
        self.jobs[True] = [jointopt.load_job(name, nodes.get(name, {})) for name in DAY["jobs"]]
        self.full = {broken: self.shared(broken, NO_LIMIT_KW).found.jobs for broken in (False, True)}
        idle_kw = [self.priced(number, 0.0).steps[0]["power_kw_high"] for number in range(len(DAY["jobs"]))]
        self.idle_kw = {
            broken: [kw * one.gpus / all_.gpus for kw, one, all_ in zip(idle_kw, full, self.full[False], strict=True)]
            for broken, full in self.full.items()
        }
        number = DAY["jobs"].index(FAILURE["job"])
        stated = {"training.run_tokens": DAY["run_tokens"], "reliability.checkpoint_interval_s": DAY["interval_s"]}
        self.run = jointopt.goodput(jointopt.load_job(FAILURE["job"], stated), self.full[False][number].plan)

    @property
    def failure_s(self) -> float:
        """What the failure takes from its job in s: until it is noticed, the restart, half an interval on average."""
        stated = self.run.reliability
        return (stated.detection_s or 0.0) + (stated.restart_s or 0.0) + 0.5 * self.run.interval_s

    def shared(self, broken: bool, site_kw: float) -> Any:
        """The power of the site between its jobs."""
        return jointopt.fleet(self.jobs[broken], site_kw=site_kw)

    def limits_kw(self, way: str, broken: bool, limit_kw: float) -> list[float]:
        """The power that each job may draw in one of `WAYS` while the site has a limit."""
        full_kw, idle_kw = [job.power_kw_high for job in self.full[broken]], self.idle_kw[broken]
        if way == "capped alike":
            return [min(1.0, limit_kw / sum(full_kw)) * kw for kw in full_kw]
        if way == "paused by turns":
            every = itertools.product((True, False), repeat=len(full_kw))
            powers = [(sum(on), [full_kw[n] if on[n] else idle_kw[n] for n in range(len(on))]) for on in every]
            return max((one for one in powers if sum(one[1]) <= limit_kw), key=lambda one: one[0])[1]
        return [job.power_kw_high for job in self.shared(broken, limit_kw).found.jobs]

    def priced(self, number: int, part: float, *, flat: bool = False) -> Any:
        """A job's schedule over the prices of the day, or over one price, with a part of the tokens it could make."""
        day, full = steps(False), self.full[False][number]
        price = [day["price"].mean()] * len(day) if flat else day["price"]
        signal = pd.DataFrame({"time_s": [*HOUR_S * day["from_h"], DAY_S], "price_per_kwh": [*price, None]})
        tokens = part * full.tokens_per_s * DAY_S
        return jointopt.follow(self.jobs[False][number], full.plan, signal=signal, tokens_by=tokens)


def rows_of(site: Site, way: str, fails: bool) -> list[dict[str, Any]]:
    """A row for each step of each job, whose clocks follow what it may draw: tokens in percent of full clocks."""
    found, day = [], steps(fails)
    for broken, part in day.groupby("broken", sort=False):
        limits = np.array([site.limits_kw(way, bool(broken), kw) for kw in part["limit_kw"]]) * (1.0 + _ROUNDING)
        bounds_s = HOUR_S * np.append(part["from_h"], part["to_h"].iloc[-1])
        for number, (job, full) in enumerate(zip(site.jobs[bool(broken)], site.full[bool(broken)], strict=True)):
            signal = pd.DataFrame({"time_s": bounds_s, "limit_kw": [*limits[:, number], np.nan]})
            lost_s = site.failure_s if broken and job.name == FAILURE["job"] else 0.0
            for step in jointopt.follow(job, full.plan, signal=signal).steps:
                made = step["tokens_per_s"] / site.full[False][number].tokens_per_s
                start_s, end_s = step["from_s"], step["to_s"]
                taken_s, lost_s = (min(lost_s, end_s - start_s), 0.0) if made else (0.0, lost_s)
                at = int(np.searchsorted(day["from_h"], start_s / HOUR_S, side="right")) - 1
                found.append(
                    {"day": "a node breaks" if fails else "limits", "way": way, "job": job.name,
                     "from_h": start_s / HOUR_S, "to_h": end_s / HOUR_S, "limit_kw": day["limit_kw"][at],
                     "price": day["price"][at], "clocks_mhz": ";".join(f"{mhz:g}" for mhz in step["stage_clock_mhz"]),
                     "power_kw": step["power_kw"], "power_kw_high": step["power_kw_high"],
                     "tokens_%": 100.0 * made * (1.0 - taken_s / (end_s - start_s))}
                )  # fmt: skip
    return found


def table_of(found: pd.DataFrame) -> pd.DataFrame:
    """A row for each day and way: tokens in percent, the mean of the jobs and the least, energy, money, pauses."""
    hours = found["to_h"] - found["from_h"]
    kwh, key = hours * found["power_kw"], ["day", "way"]
    sums = found.assign(
        made=hours / 24.0 * found["tokens_%"], kwh=kwh, money=kwh * found["price"],
        paused_h=hours * (found["clocks_mhz"] == ""),
    )  # fmt: skip
    by_job = sums.groupby([*key, "job"], sort=False)["made"].sum().groupby(key, sort=False)
    whole = sums.groupby(key, sort=False)[["kwh", "money", "paused_h"]].sum()
    return by_job.agg(["mean", "min"]).set_axis(["tokens_%", "least_%"], axis=1).join(whole).reset_index().round(2)


def prices_of(site: Site) -> pd.DataFrame:
    """A row for each share of the tokens: money of the prices followed, of constant clocks, of pauses at the peak."""
    day, rows = steps(False), []
    hours, numbers = (day["to_h"] - day["from_h"]).to_numpy(), range(len(DAY["jobs"]))
    full_kw = sum(job.power_kw for job in site.full[False])
    idle_kw = sum(site.priced(number, 0.0).steps[0]["power_kw"] for number in numbers)
    restart_h = (site.run.reliability.restart_s or 0.0) / HOUR_S
    nothing = full_kw * float(hours @ day["price"])
    for percent in DAY["tokens_percent"]:
        part = percent / 100.0
        paused_h = 24.0 * (1.0 - part) - restart_h  # the restart makes no tokens either
        saved = paused_h * day["price"].max() * (full_kw - idle_kw)
        constant = [site.priced(number, part, flat=True).energy_j / 3.6e6 / 24.0 for number in numbers]
        rows.append(
            {"tokens_%": percent, "nothing": nothing, "paused at the peak": nothing - saved,
             "constant clocks": sum(constant) * float(hours @ day["price"]),
             "followed": sum(site.priced(number, part).cost for number in numbers)}
        )  # fmt: skip
    return pd.DataFrame(rows).round(2)


def summary(table: pd.DataFrame, prices: pd.DataFrame) -> dict[str, float]:
    """The figures that pages quote, by name."""
    found: dict[str, Any] = {}
    for row in table.to_dict("records"):
        found |= {f"{row['day']} {row['way']} {name.replace('_%', ' percent')}": row[name] for name in
                  ("tokens_%", "least_%", "kwh", "money", "paused_h")}  # fmt: skip
    for row in prices.to_dict("records"):
        for way in ("paused at the peak", "constant clocks", "followed"):
            found[f"prices {row['tokens_%']:g} {way} saves percent"] = 100.0 * (1.0 - row[way] / row["nothing"])
    return {name: round(float(value), 3) for name, value in found.items()}


def draw(found: pd.DataFrame, file: Path) -> None:
    """Draw the day on which a node breaks: power with its high end against the limit, and what each way makes."""
    plot, (power, made) = plt.subplots(2, 1, figsize=(9.0, 6.4), dpi=100, sharex=True)
    day = found[found["day"] == "a node breaks"]
    hours = np.unique([*day["from_h"], 24.0])
    at = {  # the row of each way and job at each of these hours
        key: part.iloc[np.searchsorted(part["from_h"], hours, side="right") - 1]
        for key, part in day.groupby(["way", "job"])
    }
    powers = [at[WAYS[0], job]["power_kw_high"] for job in DAY["jobs"]]
    power.stackplot(hours, powers, labels=DAY["jobs"], step="post", colors=COLOURS[4:], alpha=0.6)
    power.step(hours, at[WAYS[0], DAY["jobs"][0]]["limit_kw"], where="post", color="black", label="limit of the site")
    power.set(ylabel="high end of the power (kW)", ylim=(0.0, None))
    for number, way in enumerate(WAYS):
        mean = np.mean([at[way, job]["tokens_%"] for job in DAY["jobs"]], axis=0)
        made.step(hours, mean, where="post", color=COLOURS[number], label=way, lw=2.4 - 0.5 * number)
    made.set(ylabel="tokens, mean of the jobs (%)", xlabel="hour", ylim=(0.0, 105.0), xlim=(0.0, 24.0))
    for axes in (power, made):
        axes.axvline(FAILURE["hour"], color="gray", ls=":")
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    made.set_xticks(np.arange(0, 25, 3))
    plot.tight_layout()
    plot.savefig(file)


def main() -> None:
    """Play the day, write the tables and the plot, and print what each way makes and pays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE, help="folder of what is written")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    site = Site()
    rows = [row for fails in (False, True) for way in WAYS for row in rows_of(site, way, fails)]
    found = pd.DataFrame(rows).round(4)
    table, prices = table_of(found), prices_of(site)
    for name, one in {"results": found, "table": table, "prices": prices}.items():
        one.to_csv(out / f"{name}.csv", index=False)
    draw(found, out / "day.png")
    texts = {"ways": table.to_csv(index=False), "prices": prices.to_csv(index=False)}
    print(*texts.values(), sep="\n")
    if out.resolve() == HERE:
        for name, text in texts.items():
            replace_between(HERE / "README.md", f"<!-- {name} -->", f"<!-- end of {name} -->", f"```\n{text}```")
        figures.record("follow", COMMAND, RESTS_ON, summary(table, prices))


if __name__ == "__main__":
    main()

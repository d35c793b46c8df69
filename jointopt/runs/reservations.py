"""One plan, one runner: who runs which plan of a job, in the database that its measurements are kept in.

A plan is reserved in one transaction before it is run; study and plan are a unique key. Its runner renews the
reservation while it lives. One whose runner is dead may be taken once more by another, and no third time: the plan
itself may be what kills. A plan that was run stays reserved as such, so that whoever has not seen its result yet does
not run it again.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from jointopt.core.system import may_be_alive, this_process
from jointopt.runs.database import make_table, now_s, on_store, open_database

LEASE_S = 60.0  # that a runner may be silent
_RUNNING, _DONE, _FREE = "running", "done", "free"
_TABLE = sa.Table(
    "jointopt_reservations",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("study", sa.String(64), nullable=False),
    sa.Column("plan", sa.Text, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("runner", sa.Text, nullable=False),
    sa.Column("seen_s", sa.Float, nullable=False),  # when its runner was last heard of, seconds since 1970
    sa.Column("runs", sa.Integer, nullable=False),  # that have ended
    sa.Column("lost", sa.Integer, nullable=False),  # whose runner died
    sa.UniqueConstraint("study", "plan"),
)


@dataclass(frozen=True)
class Reservation:
    """One plan of a study: who runs it or has run it, as of one look into the database."""

    plan: str
    state: str  # running | done | free
    runner: str  # `this_process` and a token
    runs: int  # that have ended
    lost: int  # runners in a row that died
    silent_s: float  # since its runner was last heard of
    is_mine: bool  # whether its runner is the one that asks

    @property
    def abandoned(self) -> bool:
        """Whether the plan was being run by a process that is dead, or of another machine and silent for a lease."""
        dead = not may_be_alive(self.runner.rpartition(":")[0]) if self.on_this_machine else self.silent_s > LEASE_S
        return self.state == _RUNNING and not self.is_mine and dead

    @property
    def on_this_machine(self) -> bool:
        """Whether its runner is a process of this machine, which can be asked whether it is alive."""
        return self.runner.startswith(f"{socket.gethostname()}:")

    @property
    def runs_elsewhere(self) -> bool:
        """Whether another process that may live is running the plan."""
        return self.state == _RUNNING and not self.is_mine and not self.abandoned


@dataclass
class Reservations:
    """The reservations of one ``study`` (a name of at most 64 characters) in the database of ``url``, for one runner.

    Methods raise UsageError where the database cannot be used.
    """

    url: str
    study: str
    _runner: str = ""
    _known: dict[str, int] = field(default_factory=dict)  # ended runs of plans, as of when this runner last looked
    _held: set[str] = field(default_factory=set)
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _renews: bool = False  # whether a thread does, which ends where nothing is held any more

    @on_store
    def __post_init__(self) -> None:
        self._runner = f"{this_process()}:{secrets.token_hex(4)}"
        self._engine = open_database(self.url, lock_first=True)
        make_table(self._engine, _TABLE)
        self.read()

    @on_store
    def read(self) -> dict[str, Reservation]:
        """All reservations of the study by plan; runs that have ended by now count as known to this runner."""
        with self._engine.connect() as connection:
            at_s = now_s(connection)
            rows = connection.execute(sa.select(_TABLE).where(_TABLE.c.study == self.study)).all()
        found = {row.plan: self._of_row(row, at_s) for row in rows}
        self._known = {plan: one.runs for plan, one in found.items()}
        return found

    def _of_row(self, row: Any, at_s: float) -> Reservation:
        silent_s, mine = at_s - row.seen_s, row.runner == self._runner
        return Reservation(row.plan, row.state, row.runner, row.runs, row.lost, silent_s, mine)

    @on_store
    def take(self, plan: str, again: bool = False) -> bool:
        """Reserve a plan for this runner; False where another runs it, or has run it since this one last looked.

        ``again``: also where two runners of it have died.
        """
        try:
            taken = self._take(plan, again)
        except IntegrityError:  # another process was faster
            taken = False
        with self._lock:
            if taken:
                self._held.add(plan)
            if taken and not self._renews:
                self._renews = True
                threading.Thread(target=self._renew, daemon=True).start()
        return taken

    @on_store
    def end(self, plan: str, ran: bool = True) -> None:
        """Ends this runner's reservation: the plan ``ran``, and its result is kept, or it is free for others."""
        values: Mapping[str, Any] = {"state": _DONE, "runs": _TABLE.c.runs + 1, "lost": 0} if ran else {"state": _FREE}
        own = (_TABLE.c.study == self.study) & (_TABLE.c.plan == plan) & (_TABLE.c.runner == self._runner)
        with self._engine.begin() as connection:
            running = own & (_TABLE.c.state == _RUNNING)  # a run counts once, however often this begins
            connection.execute(sa.update(_TABLE).where(running).values(**values))
        self._held.discard(plan)
        if ran:
            self._known[plan] = self._known.get(plan, 0) + 1

    def wait_for_freed(self) -> bool:
        """Waits until each runner of another machine is heard of or dead, at most a lease; whether a plan is free now.

        A runner that is alive is heard of within a quarter of a lease.
        """
        waiting = {
            plan: one.silent_s for plan, one in self.read().items() if one.runs_elsewhere and not one.on_this_machine
        }
        until = time.monotonic() + LEASE_S + 1
        while waiting and time.monotonic() < until:
            time.sleep(min(1.0, LEASE_S / 10))
            found = self.read()
            if any(found[plan].abandoned and found[plan].lost == 0 for plan in waiting):
                return True
            waiting = {plan: silent_s for plan, silent_s in waiting.items()
                       if found[plan].runs_elsewhere and found[plan].silent_s > silent_s}  # fmt: skip
        return False

    def close(self) -> None:
        """Ends the thread that renews reservations."""
        self._stop.set()

    def _take(self, plan: str, again: bool) -> bool:
        """Make a reservation, or take over one that is free, ended as known, or abandoned."""
        own = (_TABLE.c.study == self.study) & (_TABLE.c.plan == plan)
        with self._engine.begin() as connection:
            row = connection.execute(sa.select(_TABLE).where(own).with_for_update()).one_or_none()
            at_s = now_s(connection)
            running = {"state": _RUNNING, "runner": self._runner, "seen_s": at_s}
            if row is None:
                new = sa.insert(_TABLE).values(study=self.study, plan=plan, runs=0, lost=0, **running)
                connection.execute(new)
                return True
            one = self._of_row(row, at_s)
            known = row.state == _DONE and row.runs == self._known.get(plan, 0)
            lost = one.abandoned and (row.lost == 0 or again)
            if not (row.state == _FREE or known or lost or one.is_mine):
                return False
            connection.execute(sa.update(_TABLE).where(own).values(**running, lost=row.lost + int(one.abandoned)))
        return True

    def _renew(self) -> None:
        while not self._stop.wait(LEASE_S / 4):
            with self._lock:
                if not self._held:
                    self._renews = False
                    return
            try:
                with self._engine.begin() as connection:
                    mine = (_TABLE.c.runner == self._runner) & (_TABLE.c.state == _RUNNING)
                    connection.execute(sa.update(_TABLE).where(mine).values(seen_s=now_s(connection)))
            except (SQLAlchemyError, OSError):
                continue  # it may be back before the lease ends; if not, others take over

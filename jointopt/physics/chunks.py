"""Makespan of interleaved 1F1B with a time for every chunk of a rank, exact: `schedule.replay` for many plans at once.

Rank i runs w_i = 2(p-1-i) + (v-1)p forwards, then forward slot w_i + r and backward slot r by turns. Counted by the
step q = r - i, every input comes from the step before: rank i's forward from rank i - 1, its backward from rank i + 1,
round the ring at both ends. So one step is a few operations on all ranks of all plans. Derived here.
"""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Floats, Ints

BLOCK_TIMES = 8192  # plans per block times pp: the state of one block stays in the cache
_ALIKE = 1e-12  # relative; two advances that differ by rounding


def chunked_time_s(forward_s: Floats, backward_s: Floats, num_micro_batches: Ints | int) -> Floats:
    """Makespan in s, (n,), for seconds (vpp, pp, n) of one micro-batch on each chunk, blocking receives included.

    ``num_micro_batches`` (n,) are multiples of pp, vpp and pp at least 2. The schedule is `schedule.schedule_order`'s.
    """
    _, p, n = forward_s.shape
    step = max(BLOCK_TIMES // p, 16)
    time_s, groups = np.empty(n), np.broadcast_to(num_micro_batches, n) // p
    for some in (np.flatnonzero(groups == 1), np.flatnonzero(groups > 1)):
        for block in (some[start : start + step] for start in range(0, len(some), step)):
            f, b = (np.ascontiguousarray(a[:, :, block], dtype=np.float64) for a in (forward_s, backward_s))
            time_s[block] = _block_time_s(f, b, groups[block])
    return time_s


def path_bound_s(ahead_s: Floats, rank_s: Floats, num_micro_batches: Ints) -> Floats:
    """Seconds (n,) that no schedule of a pipeline goes below: one rank's work and the way to it.

    A path through the schedule: forwards of the first micro-batch down to a rank, all of its work (``rank_s`` (n, pp)
    of each of the micro-batches (n,)), and backwards from it where ranks end with a backward pass that the rank before
    waits for, as those of `chunked_time_s` do. ``ahead_s`` (n, pp): what is on the way of the first chunks of the ranks
    before. Of ranks alike the last has the longest way, and may stand for all.
    """
    return np.asarray((ahead_s + num_micro_batches[:, None] * rank_s).max(axis=1))


def _block_time_s(f: Floats, b: Floats, groups: Ints) -> Floats:
    """Makespan (n,) of one block of plans, walked from both ends to the middle of two groups of pp micro-batches.

    Read backwards in time the schedule is the same one, with passes exchanged: its longest path is the longest way to
    a cut and on from it, the latter as of plans (b, f). From there on further groups are walked through, but for those
    that only repeat: once all that the next step reads has moved on by one constant within a group, so it will in each
    further one, as the step takes maxima of sums. ``groups`` (n,): all 1, or all above.
    """
    v, p, n = f.shape
    period, least = p * v, min(int(groups.min()), 2)
    cut = (least - 1) * period - p + 2  # steps from the first one with a backward pass of rank 0, of both walks
    both = _State(np.concatenate([f, b], axis=2), np.concatenate([b, f], axis=2), int(groups.max()))
    both.run(-(period + p - 2), done := cut // 2)
    ahead, behind = both.of(slice(n)), both.of(slice(n, None))
    behind.run(done, cut - done)
    time_s, alive, left = np.empty(n), np.arange(n), groups - least
    while True:
        last = left[alive] == 0
        time_s[alive[last]] = ahead.of(last).joined_s(behind.of(last), done)
        if last.all():
            return time_s
        if last.any():
            alive, ahead, behind = alive[~last], ahead.of(~last), behind.of(~last)
        before = ahead.values()
        ahead.run(done, done + period)
        done += period
        left[alive] -= 1
        advance = ahead.values() - before
        fewest, most = advance.min(axis=(0, 1)), advance.max(axis=(0, 1))
        repeats = most - fewest <= _ALIKE * ahead.free.max(axis=0)
        if repeats.any():
            some = alive[repeats]
            here_s = ahead.of(repeats).joined_s(behind.of(repeats), done)
            time_s[some] = here_s + left[some] * most[repeats]
            alive, ahead, behind = alive[~repeats], ahead.of(~repeats), behind.of(~repeats)


class _State:
    """Times that the next step reads: when each rank is free, and when its inputs are there, (pp [+ 1], n)."""

    def __init__(self, f: Floats, b: Floats, groups: int) -> None:
        self.f, self.b, self.groups = f, b, groups
        _, p, n = f.shape
        self.free = np.zeros((p, n))
        self.down = np.zeros((p + 1, n))  # row i: input of rank i's next forward; row p is what the last rank sends
        self.up = np.zeros((p + 1, n))  # row i + 1: input of rank i's next backward; row 0 is what the first one sends

    def values(self) -> Floats:
        """All of these times, (3, pp, n); an input that comes from no rank counts as there when the rank is free."""
        return np.stack([self.free, self.down[1:], self.up[:-1]])

    def of(self, rows: Floats | slice) -> _State:
        """The state of some plans."""
        part = _State.__new__(_State)  # to copy by `copy` takes as long as to take the rows
        part.groups = self.groups
        for name in ("f", "b", "free", "down", "up"):
            setattr(part, name, np.ascontiguousarray(getattr(self, name)[..., rows]))
        return part

    def joined_s(self, behind: _State, step: int) -> Floats:
        """Seconds, (n,), of the longest path: to this walk, before ``step``, and on from there as ``behind`` came."""
        v, p, _ = self.f.shape
        paths = [self.free + behind.free, self.down[1:p] + behind.up[1:p], self.up[1:p] + behind.down[1:p]]
        if (step + p - 2) % (p * v) >= p:  # rank 0's next forward is of no first chunk, so that the last rank sends it
            paths.append(self.down[p:] + behind.up[:1])
        if (step + p - 1) % (p * v) >= p:
            paths.append(self.up[:1] + behind.down[p:])
        return np.asarray(np.concatenate(paths).max(axis=0))

    def run(self, start: int, stop: int) -> None:
        """Walk through the steps ``start`` to ``stop`` - 1."""
        v, p, _ = self.f.shape
        slots = self.groups * p * v
        for q in range(start, stop):
            self._forward(q + p * v + p - 2, slots)
            self._backward(q, slots)

    def _forward(self, slot: int, slots: int) -> None:
        """Rank i runs its forward ``slot`` - i, those ranks that have one."""
        v, p, _ = self.f.shape
        first, last = max(slot - slots + 1, 0), min(slot, p - 1) + 1
        if first >= last:
            return
        chunk, member = divmod(slot % (p * v), p)  # of rank 0; ranks beyond ``member`` are a chunk behind
        self.down[0] = self.down[p] if chunk else 0.0
        free = self.free[first:last]
        np.maximum(free, self.down[first:last], out=free)
        turn = min(max(member + 1, first), last)
        self.free[first:turn] += self.f[chunk, first:turn]
        self.free[turn:last] += self.f[chunk - 1, turn:last]
        self.down[first + 1 : last + 1] = free

    def _backward(self, step: int, slots: int) -> None:
        """Rank i runs its backward slot ``step`` + i, those ranks that have one."""
        v, p, _ = self.f.shape
        first, last = max(-step, 0), min(slots - step, p)
        if first >= last:
            return
        chunk, member = divmod(step % (p * v), p)  # of rank 0, counted from the last; beyond p - member one further
        turn = min(max(p - member, first), last)
        of_last = (step + p - 1) % (p * v) // p
        self.up[p] = self.up[0] if of_last else 0.0
        free = self.free[first:last]
        np.maximum(free, self.up[first + 1 : last + 1], out=free)
        self.free[first:turn] += self.b[v - 1 - chunk, first:turn]
        self.free[turn:last] += self.b[(v - 2 - chunk) % v, turn:last]
        self.up[first:last] = free

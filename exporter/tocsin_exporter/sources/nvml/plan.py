"""
What one device is asked, and when: the reads of the table that apply to it, grouped into calls and batches.

A question that the device does not answer is not asked again for a while; of several questions
for the same series the first that was answered keeps it, so that no counter changes its base.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tocsin_exporter.sources.nvml import gpm
from tocsin_exporter.sources.nvml.calls import Error, Library, Question
from tocsin_exporter.sources.nvml.fields import Batch
from tocsin_exporter.sources.nvml.quantities_links import MOST_GPM_LINKS
from tocsin_exporter.sources.nvml.reads import CALL, FIELD, GPM, TIERS, Quantity, Read, Scope
from tocsin_exporter.sources.nvml.results import GONE, NO_PERMISSION, SESSION, SUCCESS
from tocsin_exporter.sources.nvml.values import BlankError, GarbageError, Target, Value

__all__ = ["Plan", "wanted"]

# A refused question is asked again after a pause that doubles: soon after a passing error, and now and then
# what the device does not support, since modes change under a running exporter.
_FIRST_PAUSE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 600.0
# Cycles jitter; a slow read is due this much early, or it would wait for one cycle more.
_EARLY_SECONDS = 1.0


def wanted(quantity: Quantity, scope: Scope) -> bool:
    """Whether the tier includes the quantity."""
    return TIERS.index(quantity.tier) <= scope.tier


class _Asked:
    """One question with the targets of its answer, and when it may be asked next."""

    __slots__ = ("every", "kind", "not_before", "number", "pause", "question", "targets")

    def __init__(self, kind: str, every: float, number: int, question: Question | None) -> None:
        self.kind = kind
        self.every = every
        self.number = number
        self.question = question
        # Target and, for a call, where in the results its number is.
        self.targets: list[tuple[Target, int, str]] = []
        self.not_before = 0.0
        self.pause = _FIRST_PAUSE_SECONDS

    def refused(self, now: float) -> None:
        """Leave it alone for a while."""
        self.not_before = now + self.pause
        self.pause = min(2 * self.pause, _LONGEST_PAUSE_SECONDS)


def _expanded(read: Read, scope: Scope) -> Iterable[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Yield labels and arguments: one pair, or one per link."""
    if not read.since <= scope.architecture <= read.until:
        return
    if not read.per:
        yield read.labels, read.argument
    elif read.kind == GPM:
        # These have an id per link.
        if int(read.labels[0]) < min(scope.links[read.per], MOST_GPM_LINKS):
            yield read.labels, ()
    else:
        for link in range(scope.links[read.per]):
            argument = (link,) if read.kind == FIELD else (link, *read.argument)
            yield (str(link), *read.labels), argument


class Plan:
    """The questions to one device or MIG instance."""

    def __init__(
        self,
        library: Library,
        handle: Any,
        quantities: Iterable[Quantity],
        scope: Scope,
        activity: gpm.Activity | None,
    ) -> None:
        self._library = library
        self._handle = handle
        self._activity = activity
        self._calls: dict[float, list[_Asked]] = {}
        self._batches: dict[float, dict[tuple[str, int], list[_Asked]]] = {}
        self._built: dict[tuple[float, str, int], tuple[list[_Asked], Batch]] = {}
        self._metrics: list[_Asked] = []
        self._owner: dict[tuple[str, tuple[str, ...]], Target] = {}
        self._last: dict[float, float] = {}
        self._rows: dict[float, list[Value]] = {}
        self._active_rows: list[Value] = []
        self.rejected = 0
        # Quantities that the driver keeps from this user.
        self.denied: set[str] = set()
        for quantity in quantities:
            if wanted(quantity, scope):
                for read in quantity.reads:
                    self._add(quantity, read, scope)

    def _add(self, quantity: Quantity, read: Read, scope: Scope) -> None:
        for labels, argument in _expanded(read, scope):
            target = Target(quantity, read, labels)
            if read.kind == CALL:
                self._add_call(quantity.every, read, argument, target)
            elif read.kind == FIELD:
                asked = _Asked(FIELD, quantity.every, read.number, None)
                asked.targets.append((target, 0, ""))
                place = (read.per or "device", argument[0])
                self._batches.setdefault(quantity.every, {}).setdefault(place, []).append(asked)
            elif read.kind == GPM and self._activity is not None:
                asked = _Asked(GPM, quantity.every, read.number, None)
                asked.targets.append((target, 0, ""))
                self._metrics.append(asked)

    def _add_call(self, every: float, read: Read, argument: tuple[int, ...], target: Target) -> None:
        group = self._calls.setdefault(every, [])
        position, _, member = (
            read.attribute.rpartition(".") if "." in read.attribute else (read.attribute, "", "")
        )
        if position and not position.isdigit():
            position, member = "0", read.attribute
        place = (target, int(position or 0), member or "value")
        # A link's errors are one function with two arguments; its name says which one it is.
        form = read.name.partition("/")[0] if read.per else read.name
        for asked in group:
            if asked.question is not None and asked.question.same(form, argument):
                asked.targets.append(place)
                return
        asked = _Asked(CALL, every, 0, Question(self._library, form, self._handle, argument))
        asked.targets.append(place)
        group.append(asked)

    def read(self, now: float) -> list[Value]:
        """
        Return all rows at *now* (monotonic), those of slow quantities as last read.

        Raises `Error` when the device or the session is lost.
        """
        self.rejected = 0
        for every in {*self._calls, *self._batches}:
            last = self._last.get(every)
            if last is None or now - last >= every - _EARLY_SECONDS:
                self._last[every] = now
                rows: list[Value] = []
                for place, group in self._batches.get(every, {}).items():
                    self._read_batch((every, *place), group, now, rows)
                for asked in self._calls.get(every, ()):
                    self._read_call(asked, now, rows)
                self._rows[every] = rows
        if self._activity is not None and self._metrics:
            self._read_activity(now)
        return [row for rows in (*self._rows.values(), self._active_rows) for row in rows]

    def close(self) -> None:
        """Give samples back."""
        if self._activity is not None:
            self._activity.close()

    def _mine(self, target: Target) -> bool:
        return self._owner.get(target.key, target) is target

    def _take(self, target: Target, raw: Any, now: float, rows: list[Value], unit: str = "") -> None:
        if not self._mine(target):
            return
        try:
            rows += target.rows(raw, now, unit)
        except BlankError:
            return
        except GarbageError:
            self.rejected += 1
            return
        self._owner[target.key] = target

    def _refused(self, asked: _Asked, code: int, now: float) -> None:
        if code == NO_PERMISSION:
            self.denied.update(target.key[0] for target, _, _ in asked.targets)
        asked.refused(now)

    def _read_call(self, asked: _Asked, now: float, rows: list[Value]) -> None:
        question = asked.question
        if (
            question is None
            or now < asked.not_before
            or not any(self._mine(target) for target, _, _ in asked.targets)
        ):
            return
        code = question.ask()
        if code == SUCCESS:
            asked.pause = _FIRST_PAUSE_SECONDS
            for target, position, member in asked.targets:
                self._take(target, getattr(question.results[position], member), now, rows)
        elif code in GONE or code in SESSION:
            raise Error(code)
        else:
            self._refused(asked, code, now)

    def _read_batch(
        self, place: tuple[float, str, int], group: list[_Asked], now: float, rows: list[Value]
    ) -> None:
        live = [asked for asked in group if now >= asked.not_before and self._mine(asked.targets[0][0])]
        built = self._built.get(place)
        if built is None or built[0] != live:
            built = self._built[place] = (live, Batch([asked.number for asked in live], place[2]))
        for asked, (code, value) in zip(live, built[1].ask(self._library, self._handle), strict=True):
            if code == SUCCESS:
                asked.pause = _FIRST_PAUSE_SECONDS
                self._take(asked.targets[0][0], value, now, rows)
            else:
                self._refused(asked, code, now)

    def _read_activity(self, now: float) -> None:
        activity = self._activity
        if activity is None:
            return
        due = [asked for asked in self._metrics if now >= asked.not_before]
        if not activity.sample(now):
            # The first sample, or one too close to the last: then what was measured last still holds.
            if activity.idle(now):
                self._active_rows = []
            return
        rows: list[Value] = []
        for asked, (code, value, unit) in zip(due, activity.metrics([a.number for a in due]), strict=True):
            if code == SUCCESS:
                asked.pause = _FIRST_PAUSE_SECONDS
                self._take(asked.targets[0][0], value, now, rows, unit)
            else:
                self._refused(asked, code, now)
        self._active_rows = [] if self._blank(rows) else rows

    def _blank(self, rows: list[Value]) -> bool:
        """Whether the activity is lost: no cycle since the boot, or nothing but zeros while kernels ran."""
        if any(name == "sm_cycles_total" and value == 0 for name, _, value in rows):
            return True
        ratios = [value for name, _, value in rows if name.endswith("_ratio")]
        busy = any(name == "utilization_ratio" and value > 0 for name, _, value in self._rows.get(0.0, ()))
        return busy and bool(ratios) and not any(ratios)

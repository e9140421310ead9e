"""Memory of an engine: amounts as people write them, and the number of KV pages that fit, decided once at start."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prolepsis.core.config import AUTO
from prolepsis.core.errors import ConfigError, MemoryPlanError

AUTO_PERCENT = 25.0
"""Share of the memory left that `AUTO` takes at most: others on the machine, and servers like this one, need some."""
AUTO_PERCENT_OF_ONE = 50.0  # the same where one sequence of the whole context needs more
LEAST_CONTEXT = 256  # tokens; a context is not cut to fewer

_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    what: str
    num_bytes: int
    setting: str = ""  # the setting that lowers it; empty: none does


@dataclass(frozen=True, slots=True)
class Room:
    """The memory of one place, and what must fit there besides the KV cache."""

    place: str  # as in error messages: 'this machine', 'cuda:0'
    num_bytes: int  # free memory, and what this process holds already of `uses`
    uses: Sequence[MemoryUse] = ()

    @property
    def left(self) -> int:
        """Bytes left for the KV cache; negative if not even `uses` fit."""
        return self.num_bytes - sum(use.num_bytes for use in self.uses)

    def check(self, *more: MemoryUse, lower: str = "") -> None:
        """Raise `MemoryPlanError` with the sum if the uses and `more` do not fit; `lower`: what helps."""
        if self.left >= sum(use.num_bytes for use in more):
            return
        uses = sorted((use for use in (*more, *self.uses) if use.num_bytes), key=lambda use: -use.num_bytes)
        parts = [f"{format_bytes(use.num_bytes)} {use.what}{f' ({use.setting})' * bool(use.setting)}" for use in uses]
        total = format_bytes(sum(use.num_bytes for use in uses))
        lower = lower or f"lower {' or '.join(filter(None, (use.setting for use in uses)))}, or choose a smaller model"
        raise MemoryPlanError(
            f"{total} of memory are needed, and {self.place} has {format_bytes(max(0, self.num_bytes), up=False)}: "
            f"{', '.join(parts)}; {lower}"
        )


@dataclass(frozen=True, slots=True)
class PageShape:
    page_bytes: int  # size of one page over all caches that have a page of this number
    page_size: int
    max_model_len: int
    max_requests: int
    is_cuttable: bool = False  # `max_model_len` is only the most that the model can, and may be cut to what fits

    @property
    def per_sequence(self) -> int:
        return -(-self.max_model_len // self.page_size)


@dataclass(frozen=True, slots=True)
class PagePlan:
    """What fits: KV pages, and the longest sequence in them."""

    num_pages: int
    max_model_len: int
    num_lendable: int = 0  # pages that a proposer's cache takes, and lends


@dataclass(frozen=True, slots=True)
class Budget:
    """What `kv_memory` allows the KV cache: an amount, or shares of the memory that is left."""

    num_bytes: int | None = None
    percent: float = 0.0  # for all sequences together
    percent_of_one: float = 0.0  # for a sequence of the whole context, if that is more

    def pages(self, shape: PageShape, left: int) -> int:
        """Return the number of pages, at most what `max_requests` sequences use of a share."""
        if self.num_bytes is not None:
            return self.num_bytes // shape.page_bytes
        needed = shape.per_sequence
        share, of_one = (int(part * left / 100) // shape.page_bytes for part in (self.percent, self.percent_of_one))
        return min(max(share, min(needed, of_one)), needed * shape.max_requests)


def parse_budget(text: str) -> Budget:
    """Return what a `kv_memory` allows; raises `ConfigError` naming what is allowed."""
    if text == AUTO:
        return Budget(percent=AUTO_PERCENT, percent_of_one=AUTO_PERCENT_OF_ONE)
    if (match := _PERCENT.fullmatch(text)) is not None and 0 < (percent := float(match[1])) <= 100:
        return Budget(percent=percent, percent_of_one=percent)
    try:
        return Budget(parse_bytes(text))
    except ConfigError as error:
        raise ConfigError(f"{error}, a share such as 40%, or {AUTO}", param="kv_memory") from None


def share_for(budget: str, num_engines: int) -> str:
    """Return the budget of each of several engines that start on one machine at once: a share is divided among them."""
    if num_engines < 2 or not (budget == AUTO or _PERCENT.fullmatch(budget)):
        return budget
    return f"{parse_budget(budget).percent_of_one / num_engines:.4g}%"


def parse_bytes(text: str, *, name: str = "kv_memory") -> int:
    """Return the bytes of an amount such as '768MiB' or '2GB'. Raises `ConfigError` naming what is allowed."""
    match = _AMOUNT.fullmatch(text)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or float(match[1]) <= 0:
        raise ConfigError(f"{name} is {text!r}; allowed: a positive amount such as 768MiB or 2GiB", param=name)
    return int(float(match[1]) * unit)


def format_bytes(count: int, *, up: bool = True) -> str:
    """Return `count` in the largest binary unit that keeps it at 1 or more, rounded up (or down) to a tenth."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{(-(-count * 10 // size) if up else count * 10 // size) / 10:g}{unit}"
    return f"{count}B"


def plan_pages(budget: str, shape: PageShape, room: Room) -> PagePlan:
    """Return the pages that fit `budget`, and the longest sequence: a context that may be cut is cut to what fits.

    Raises `MemoryPlanError` with the memory needed, if one sequence of `max_model_len` tokens does not fit the budget
    or the budget does not fit the room. A stated context gets more than a share, up to the whole room.
    """
    allowed = parse_budget(budget)
    pages = allowed.pages(shape, max(0, room.left))
    if shape.is_cuttable and LEAST_CONTEXT <= pages * shape.page_size < shape.max_model_len:
        num_tokens = pages * shape.page_size
        step = 1 << max(0, num_tokens.bit_length() - 4)  # engines with nearly the same room agree on the length
        shape = replace(shape, max_model_len=num_tokens // step * step)
    needed = shape.per_sequence
    if allowed.num_bytes is None:
        pages = max(pages, needed)
    if pages < needed:
        lower = f", or lower max_model_len to at most {pages * shape.page_size}" if pages else ""
        raise MemoryPlanError(
            f"kv_memory {budget} holds {pages * shape.page_size} tokens; one sequence of max_model_len "
            f"{shape.max_model_len} needs {format_bytes(needed * shape.page_bytes)}: raise kv_memory to that{lower}"
        )
    fitting, lower = max(0, room.left) // shape.page_bytes, ""
    if fitting >= shape.per_sequence:
        lower = f"lower kv_memory to at most {format_bytes(room.left, up=False)}"
    elif fitting:
        lower = f"lower max_model_len to at most {fitting * shape.page_size}, and kv_memory with it"
    room.check(MemoryUse("KV cache", pages * shape.page_bytes, "kv_memory"), lower=lower)
    return PagePlan(pages, shape.max_model_len)

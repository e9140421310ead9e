"""Examples to learn from, in the store: token ids of requests whose tenant and caller agreed."""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from typing import ClassVar, Self

import structlog
from pydantic import ValidationError
from sqlalchemy import Connection, case, func, or_, select

from prolepsis.control.store import documents as of
from prolepsis.control.store.database import Database, StoreTable
from prolepsis.control.store.documents import Condition, Documents, StoredDocument
from prolepsis.control.store.queue import Kind, QueueItem
from prolepsis.control.store.sealed import PREFIX, sealed, unsealed
from prolepsis.control.store.signing import AuditKeys, keys_of
from prolepsis.control.store.turns import forgotten_at
from prolepsis.core.config import DAY_S
from prolepsis.core.learning import DatasetManifest, Example, short_id

EXAMPLES = "learning:examples"  # noted as forgotten: examples of requests that began before are not written
_EXAMPLES = Documents("example", str, str)
"""Sealed texts by rule, tokenizer, traffic class and id; `by`: the tenant, `version`: the number of tokens."""
_ID_DIGITS = 32
_PAGE = 200
_DELETED_AT_ONCE = 500

log = structlog.get_logger(__name__)


def example_id(request_id: str) -> str:
    """Return the id of the example that a request comes to, of the engine's id of the request."""
    return sha256(request_id.encode("utf-8", "replace")).hexdigest()[:_ID_DIGITS]


@dataclass(frozen=True, slots=True)
class ExampleTotals:
    """Examples of one tenant and traffic class of a rule; none of them is opened to know this."""

    rule: str
    tokenizer: str
    traffic_class: str
    tenant: str
    number: int
    num_tokens: int
    num_bytes: int
    num_sealed: int
    first_at: float


@dataclass(frozen=True, slots=True)
class ExampleBounds:
    """What is kept of a rule's examples; the store knows no policy."""

    days: float
    num_bytes: int
    tenants: frozenset[str]  # those who agree now


class ExampleItem(QueueItem):
    """An example on its way: the writer's thread makes it."""

    kind: ClassVar[Kind] = "example"
    is_slow = True
    tenant = ""
    began_at = 0.0

    def __init__(
        self, make: Callable[[], Example | None], tenant: str, began_at: float, told: Callable[[str], None]
    ) -> None:
        """`make` returns None where nothing is to be kept. `told` hears "kept" once the example is on disk."""
        self.make, self.tenant, self.began_at, self._told = make, tenant, began_at, told
        self._is_kept = False

    def prepare(self) -> None:
        made = self.make()
        self.make = lambda: made  # once, even if the write is tried again

    def written(self) -> None:
        if self._is_kept:
            self._told("kept")

    @classmethod
    def write(cls, connection: Connection, items: Sequence[Self]) -> None:
        """Write examples, sealed where the store's chains are signed; a batch of unknown outcome can be repeated."""
        keys, since, documents = keys_of(connection), forgotten_at(connection, EXAMPLES), list[StoredDocument[str]]()
        for item in items:
            example = item.make() if item.began_at > since else None
            item._is_kept = example is not None
            if example is not None:
                documents.append(_document(example, keys))
        _EXAMPLES.add(connection, documents)


def _document(example: Example, keys: AuditKeys | None) -> StoredDocument[str]:
    key = f"{example.rule} {example.tokenizer} {example.traffic_class} {example.example_id}"
    num_tokens = len(example.prompt) + len(example.answer)
    return StoredDocument(key, sealed(example.to_json(), keys, key), example.at, num_tokens, example.tenant)


class ExampleTable(StoreTable):
    """Calls wait for the database and may raise `StoreUnavailable`; none belongs on an event loop."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        super().__init__(database)
        self._clock = clock

    def read(self, rule: str, *, tenants: Collection[str] | None = None, most_tokens: float = inf) -> Iterator[Example]:
        """Yield the newest of a rule's examples, oldest first, of `tenants` or of all, with `most_tokens` together.

        Those that cannot be opened are skipped, and the log has their number (`examples_not_opened`).
        """
        which = [_of_rule(rule), *([] if tenants is None else [of.by.in_([*tenants])])]
        query = select(of.key, of.text, of.version).where(_EXAMPLES.are(*which)).order_by(of.at.desc(), of.key.desc())
        found, num_tokens, num_unopened = list[tuple[str, str]](), 0, 0
        query = query.execution_options(yield_per=_PAGE)
        with self._database.read() as connection, connection.execute(query) as rows:
            keys = keys_of(connection)
            for key, text, number in rows:
                num_tokens += number
                if num_tokens > most_tokens:
                    break
                found.append((key, text))
        for key, text in reversed(found):
            example = _opened(key, text, keys)
            num_unopened += example is None
            if example is not None:
                yield example
        if num_unopened:
            log.error("examples_not_opened", rule=rule, number=num_unopened, of=len(found))

    def totals(self, *, rule: str = "", since: float = 0.0) -> Sequence[ExampleTotals]:
        """Return what there is of a rule (empty: of all) and later than `since`, by tokenizer, class and tenant."""
        place = func.substr(of.key, 1, func.length(of.key) - _ID_DIGITS - 1).label("place")
        num_sealed = func.sum(case((of.text.startswith(PREFIX), 1), else_=0))
        sums = func.count(), func.sum(of.version), func.sum(func.length(of.text)), num_sealed, func.min(of.at)
        query = select(place, of.by, *sums).where(_EXAMPLES.are(of.at > since, *([_of_rule(rule)] if rule else [])))
        with self._database.read() as connection:
            rows = connection.execute(query.group_by("place", of.by).order_by("place", of.by)).all()
        return [ExampleTotals(*place_of.split(" ", 2), *others) for place_of, *others in rows]

    def prune(self, bounds: Mapping[str, ExampleBounds]) -> int:
        """Delete what is too old, too much or of tenants that no longer agree, by rule; return the number deleted.

        Of what is too much the oldest of the largest class go first. Rules that `bounds` lacks keep nothing.
        """
        query = select(of.key, of.at, of.by, func.length(of.text)).where(_EXAMPLES.are()).order_by(of.at, of.key)
        gone, now = list[str](), self._clock()
        kept = {rule: defaultdict[str, deque[tuple[str, int]]](deque) for rule in bounds}  # by class, oldest first
        with self._database.read() as connection:
            for key, at, tenant, size in connection.execute(query):
                rule = key.partition(" ")[0]
                bound = bounds.get(rule)
                if bound is None or tenant not in bound.tenants or at < now - bound.days * DAY_S:
                    gone.append(key)
                else:
                    kept[rule][key[:-_ID_DIGITS]].append((key, size))
        for rule, by_class in kept.items():
            gone += _surplus(by_class, bounds[rule].num_bytes)
        number = 0
        for start in range(0, len(gone), _DELETED_AT_ONCE):
            with self._database.write() as connection:
                number += _EXAMPLES.remove(connection, of.key.in_(gone[start : start + _DELETED_AT_ONCE]))
            self._database.give_way()
        return number

    def has(self, manifest: DatasetManifest) -> bool:
        """Return whether all examples of a data set are still there."""
        with self._database.read() as connection:
            keys = connection.scalars(select(of.key).where(_EXAMPLES.are(_of_rule(manifest.rule))))
            ids = {short_id(key[-_ID_DIGITS:]) for key in keys}
        return all(ids.issuperset(of_tenant) for of_tenant in manifest.examples.values())


def remove(database: Database, *, tenant: str | None, ids: Collection[str], rule: str) -> int:
    """Delete the examples of a tenant (None: of all), of some ids (none: all) and of a rule ("": of all).

    Returns their number. Transactions are short, so that writers need not wait; raises `StoreUnavailable`.
    """
    which: list[Condition] = [of.by == tenant] if tenant is not None else []
    which += [or_(*(of.key.endswith(f" {each}") for each in ids))] if ids else []
    which += [_of_rule(rule)] if rule else []
    some = select(of.key).where(_EXAMPLES.are(*which)).limit(_DELETED_AT_ONCE)
    return database.repeat(lambda connection: _EXAMPLES.remove(connection, of.key.in_(some)))


def _of_rule(rule: str) -> Condition:
    return of.begins(f"{rule} ")


def _opened(key: str, stored: str, keys: AuditKeys | None) -> Example | None:
    text = unsealed(stored, keys, key)
    try:
        return None if text is None else Example.from_json(text)
    except ValidationError:
        return None


def _surplus(by_class: Mapping[str, deque[tuple[str, int]]], num_bytes: int) -> Iterator[str]:
    """Yield keys until the others have `num_bytes`; takes keys with their sizes by class, the oldest first."""
    sizes = Counter({name: sum(size for _, size in rows) for name, rows in by_class.items()})
    while sizes.total() > num_bytes:
        [(largest, _)] = sizes.most_common(1)
        key, size = by_class[largest].popleft()
        sizes[largest] -= size
        yield key

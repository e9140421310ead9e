"""Data sets, learnt heads and the run that makes them, in the store; and forgetting, which goes through all of them."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from math import inf

from sqlalchemy import Connection

from prolepsis.control.store import documents as of
from prolepsis.control.store import examples, records
from prolepsis.control.store.database import Database, StoreTable, database_time, hold
from prolepsis.control.store.documents import Documents, StoredDocument
from prolepsis.control.store.examples import EXAMPLES, example_id
from prolepsis.control.store.tables import files
from prolepsis.control.store.tenant_files import PART_BYTES, FileTable, TenantFile
from prolepsis.control.store.turns import note_forgotten
from prolepsis.core.errors import InvalidParameter, StoreConflict
from prolepsis.core.json_value import digest_of
from prolepsis.core.learning import DatasetManifest, HeadLineage, LearningRun, short_id, tenant_digest

Heads = Mapping[str, HeadLineage]
"""By NAME@VERSION."""
_DATASETS = Documents("dataset", DatasetManifest.from_json, DatasetManifest.to_json)
_HEADS = Documents("head", HeadLineage.from_json, HeadLineage.to_json)
_RUNS = Documents("learning_run", LearningRun.from_json, LearningRun.to_json)
_RUN = "run"
_LINEAGE = "learning:lineage"  # held by who changes heads
_OWNER = "learning:"  # of the weights, as no tenant is called
_MOST_NAMED = 1000  # records of a request


class LineageTable(StoreTable):
    """Calls wait for the database and may raise `StoreUnavailable`; none belongs on an event loop."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        super().__init__(database)
        self._clock = clock

    def add_dataset(self, manifest: DatasetManifest) -> str:
        """Keep a manifest and return its key; one that is there already stays as it is.

        Ask afterwards whether `ExampleTable.has` it: examples may be forgotten between reading them and this call.
        """
        key = _key_of(manifest)
        with self._database.write() as connection:
            _DATASETS.add(connection, [StoredDocument(key, manifest, manifest.made_at)])
        return key

    def datasets(self) -> Mapping[str, DatasetManifest]:
        with self._database.read() as connection:
            return _DATASETS.by_key(connection)

    def add_head(self, label: str, lineage: HeadLineage) -> bool:
        """Keep the lineage of a new head `NAME@VERSION`; return False if there is one of that label.

        A head is retired from the start if something of its data sets was forgotten meanwhile.
        """
        with self._database.write() as connection:
            hold(connection, _LINEAGE)
            sets = _DATASETS.list(connection, of.key.in_(lineage.manifests))
            if any(_key_of(document.value) != document.key for document in sets):
                lineage = replace(lineage, retired="what it learnt from was forgotten")
            return bool(_HEADS.add(connection, [StoredDocument(label, lineage, lineage.made_at)]))

    def heads(self) -> Heads:
        with self._database.read() as connection:
            return _HEADS.by_key(connection)

    def promoted(self, label: str) -> None:
        """Note that a head is promoted now; touched ones of its rule, which waited for this, are retired."""
        now = self._clock()
        _change(
            self._database,
            lambda _, heads: {
                name: replace(head, promoted_at=now) if name == label else replace(head, retired=head.touched)
                for name, head in heads.items()
                if name == label or (head.touched and not head.retired and head.rule == heads[label].rule)
            },
        )

    def retire(self, label: str, why: str) -> bool:
        """Bar a head from drafting from now on, delete its weights here, and return whether it might draft before."""

        def change(_: Connection, heads: Heads) -> Heads:
            return {label: replace(heads[label], retired=why)} if label in heads and not heads[label].retired else {}

        return bool(_change(self._database, change))

    def put_weights(self, label: str, archive: bytes) -> None:
        """Keep the archive of a head (`engine.models.heads.exchange.archive_of`) for servers of other machines."""
        _remove_weights(self._database, [label])
        file = TenantFile(
            tenant=_OWNER,
            purpose=_purpose(label),
            filename=label,
            num_bytes=len(archive),
            created_at=self._clock(),
            expires_at=inf,
        )
        parts = (archive[start : start + PART_BYTES] for start in range(0, len(archive), PART_BYTES))
        if not FileTable(self._database).put(file, parts):
            raise StoreConflict("The store has too many heads: remove some that nothing needs.")

    def weights(self, label: str) -> bytes | None:
        table = FileTable(self._database)
        kept = table.newest(_OWNER, purpose=_purpose(label), after=None, most=1)
        return b"".join(table.pages(kept[0])) if kept else None


class RunTable(StoreTable):
    """The one run, which is changed by who knows its last version."""

    def __init__(self, database: Database, clock: Callable[[], float] | None = None) -> None:
        """`clock`: None is the database's."""
        super().__init__(database, now=database_time if clock is None else lambda _: clock())

    def read(self) -> LearningRun:
        """Return the run; one that has ended, and is of no rule, if there never was one."""
        with self._database.read() as connection:
            document = _RUNS.get(connection, _RUN)
        return LearningRun() if document is None else document.value

    def swap(self, run: LearningRun) -> bool:
        """Write `run` if the stored one has its version, with the version after it; return whether it was written."""
        following = replace(run, version=run.version + 1)
        with self._database.write() as connection:
            at = self._now(connection)
            return _RUNS.swap(connection, StoredDocument(_RUN, following, at, following.version, run.holder))

    def now(self) -> float:
        """Return the database's Unix time, by which leases run out for all machines."""
        with self._database.read() as connection:
            return self._now(connection)


@dataclass(frozen=True, slots=True)
class ForgottenExamples:
    num_examples: int = 0
    retired: tuple[str, ...] = ()  # heads that may not draft any more
    touched: tuple[str, ...] = ()  # heads that leave at the next promotion


def forget(
    database: Database,
    *,
    tenant: str | None = None,
    request_id: str = "",
    rule: str = "",
    later: Collection[str] = (),
) -> ForgottenExamples:
    """Delete examples of a tenant, of one request or of a rule, and their ids in manifests; bar what learnt from them.

    Of several that are given each narrows the others. `request_id`: any name that the request's record has. `later`:
    rules whose policy says that heads leave at the next promotion. Examples of requests that run now are not written.
    If this fails half way, it can be repeated. Raises `InvalidParameter` if nothing is given, and `StoreUnavailable`.
    """
    if tenant is None and not request_id and not rule:
        raise InvalidParameter("nothing is named; allowed: a tenant, a request or a rule", param="tenant")
    note_forgotten(database, EXAMPLES)
    ids = set[str]()
    if request_id:
        with database.read() as connection:
            named = records.find(connection, [request_id], _MOST_NAMED)
        ids = {example_id(each) for each in (request_id, *(str(row["request_id"]) for row in named))}
    number = examples.remove(database, tenant=tenant, ids=ids, rule=rule)
    what = "request" if request_id else "examples of the rule" if tenant is None else "tenant"

    def change(connection: Connection, heads: Heads) -> Heads:
        sets = _without(connection, tenant, ids, rule)
        why = f"{what} forgotten {datetime.fromtimestamp(database_time(connection), UTC):%Y-%m-%d}"
        learnt = {name: head for name, head in heads.items() if not head.retired and sets & {*head.manifests}}
        retired = {name: replace(head, retired=why) for name, head in learnt.items() if head.rule not in later}
        left = {name: head for name, head in learnt.items() if head.rule in later and not head.touched}
        return {**retired, **{name: replace(head, touched=why) for name, head in left.items()}}

    changed = _change(database, change)
    retired = sorted(name for name, head in changed.items() if head.retired)
    return ForgottenExamples(number, tuple(retired), tuple(sorted(changed.keys() - {*retired})))


def _change(database: Database, change: Callable[[Connection, Heads], Heads]) -> Heads:
    """Put what `change` makes of all heads, one caller after another, and delete the weights of those retired."""
    with database.write() as connection:
        hold(connection, _LINEAGE)
        heads = _HEADS.by_key(connection)
        changed = change(connection, heads)
        _HEADS.put(connection, [StoredDocument(label, head, head.made_at) for label, head in changed.items()])
    _remove_weights(database, [label for label, head in {**heads, **changed}.items() if head.retired])
    return changed


def _without(connection: Connection, tenant: str | None, ids: Collection[str], rule: str) -> frozenset[str]:
    """Take ids out of manifests, and return the keys of those that have some, or had them before they were taken."""
    short, digest = {short_id(each) for each in ids}, None if tenant is None else tenant_digest(tenant)
    changed = list[StoredDocument[DatasetManifest]]()
    for document in _DATASETS.list(connection):
        held, manifest = document.value.examples, document.value
        mine = [name for name in held if digest in (None, name) and (not ids or not short.isdisjoint(held[name]))]
        if mine and rule in ("", manifest.rule):
            left = {name: tuple(each for each in held[name] if ids and each not in short) for name in mine}
            changed.append(replace(document, value=replace(manifest, examples={**held, **left})))
    _DATASETS.put(connection, changed)
    return frozenset(document.key for document in changed)


def _key_of(manifest: DatasetManifest) -> str:
    """Return the key of a manifest as it is read again, where a whole number may have become another."""
    return digest_of(asdict(DatasetManifest.from_json(manifest.to_json())))[:16]


def _purpose(label: str) -> str:
    return f"head:{label}"


def _remove_weights(database: Database, labels: Collection[str]) -> None:
    purposes = [_purpose(label) for label in labels]
    FileTable(database).remove_all((files.c.tenant == _OWNER) & files.c.purpose.in_(purposes))

"""Data sets, learnt heads and the run that makes them, in the store; and forgetting, which goes through all of them."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from prolepsis.control.store.database import Database
from prolepsis.core.learning import DatasetManifest, HeadLineage, LearningRun


class LineageTable:
    """Calls wait for the database and may raise `StoreUnavailable`; none belongs on an event loop."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        raise NotImplementedError

    def add_dataset(self, manifest: DatasetManifest) -> str:
        """Keep a manifest and return its key; one that is there already stays as it is."""
        raise NotImplementedError

    def datasets(self) -> Mapping[str, DatasetManifest]:
        raise NotImplementedError

    def add_head(self, label: str, lineage: HeadLineage) -> bool:
        """Keep the lineage of a new head `NAME@VERSION`; return False if there is one of that label."""
        raise NotImplementedError

    def heads(self) -> Mapping[str, HeadLineage]:
        raise NotImplementedError

    def promoted(self, label: str) -> None:
        raise NotImplementedError

    def retire(self, label: str, why: str) -> bool:
        """Bar a head from drafting from now on; return whether it was not retired before."""
        raise NotImplementedError

    def put_weights(self, label: str, archive: bytes) -> None:
        """Keep the archive of a head (`engine.models.heads.exchange.archive_of`) for servers of other machines."""
        raise NotImplementedError

    def weights(self, label: str) -> bytes | None:
        raise NotImplementedError


class RunTable:
    """The one run, which is changed by who knows its last version."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        raise NotImplementedError

    def read(self) -> LearningRun:
        """Return the run; one that has ended, and is of no rule, if there never was one."""
        raise NotImplementedError

    def swap(self, run: LearningRun) -> bool:
        """Write `run` if the stored one has its version, with the version after it; return whether it was written."""
        raise NotImplementedError

    def now(self) -> float:
        """Return the database's Unix time, by which leases run out for all machines."""
        raise NotImplementedError


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

    `later`: rules whose policy says that heads leave at the next promotion.
    """
    raise NotImplementedError

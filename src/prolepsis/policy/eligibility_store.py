"""The figures of eligibility in the store: a restart continues with them, and replicas share them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from pydantic import TypeAdapter, ValidationError

from prolepsis.core.json_value import canonical
from prolepsis.policy.eligibility import DraftFigures, Judged
from prolepsis.store.database import Database
from prolepsis.store.learned import LearnedTable, Place
from prolepsis.store.tables import eligibility

_FIGURES, _HELD = "figures", "held"
_OF_FIGURES, _OF_HELD = TypeAdapter(DraftFigures), TypeAdapter(Judged)


@dataclass(frozen=True, slots=True)
class Learned:
    figures: Mapping[str, Mapping[str, DraftFigures]]
    """By traffic class and proposer."""
    held: Iterable[Judged]


class EligibilityStore:
    """Each call waits for the database and may raise `StoreUnavailable`. The replica that writes last is kept."""

    def __init__(self, database: Database) -> None:
        self._table = LearnedTable(database, eligibility)

    def read(self) -> Learned:
        """Return what was learned; nothing of rows of another format."""
        figures: dict[str, dict[str, DraftFigures]] = {}
        held: list[Judged] = []
        for (kind, traffic_class, name), text in self._table.read().items():
            try:
                if kind == _FIGURES:
                    figures.setdefault(traffic_class, {})[name] = _OF_FIGURES.validate_json(text)
                else:
                    held.append(_OF_HELD.validate_json(text))
            except ValidationError:  # of another version of the software: it is learned again
                continue
        return Learned(figures, held)

    def write(self, learned: Learned, /) -> None:
        """Store what changed since the last write, and delete conditions that no longer exist."""
        self._table.write(dict(_texts(learned)), complete=_HELD)


def _texts(learned: Learned) -> Iterable[tuple[Place, str]]:
    """Return the text of each place: kind, traffic class, and the proposer or a digest of the condition."""
    for traffic_class, by_proposer in learned.figures.items():
        for proposer, figures in by_proposer.items():
            yield (_FIGURES, traffic_class, proposer), _OF_FIGURES.dump_json(figures).decode()
    for judged in learned.held:
        digest = sha256(canonical([judged.proposers, judged.condition, judged.min, judged.until]).encode())
        yield (_HELD, judged.traffic_class, digest.hexdigest()), _OF_HELD.dump_json(judged).decode()

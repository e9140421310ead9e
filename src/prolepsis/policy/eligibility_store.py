"""What eligibility learnt, in the store: a restart goes on with it, and replicas share it."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import delete, insert, select, tuple_

from prolepsis.core.config import DAY_S
from prolepsis.core.digests import canonical
from prolepsis.policy.eligibility import DraftFigures, Judged
from prolepsis.store.database import Database
from prolepsis.store.tables import eligibility

_FIGURES, _HELD = "figures", "held"
_KEPT_S = 90 * DAY_S  # after the last request of a traffic class
_OF_FIGURES, _OF_HELD = TypeAdapter(DraftFigures), TypeAdapter(Judged)

Place = tuple[str, str, str]
"""Kind, traffic class, and the proposer or a digest of the condition."""


@dataclass(frozen=True, slots=True)
class Learnt:
    figures: Mapping[str, Mapping[str, DraftFigures]]
    """By traffic class and proposer."""
    held: Iterable[Judged]


class EligibilityStore:
    """Each call waits for the database and may raise `StoreUnavailable`. The replica that writes last is kept."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._written: dict[Place, str] = {}

    def read(self) -> Learnt:
        """Return what was learnt; nothing of rows of another format."""
        of = eligibility.c
        with self._database.read() as connection:
            rows = connection.execute(select(of.kind, of.traffic_class, of.name, of.state)).all()
        figures: dict[str, dict[str, DraftFigures]] = {}
        held: list[Judged] = []
        for kind, traffic_class, name, text in rows:
            self._written[kind, traffic_class, name] = text
            try:
                if kind == _FIGURES:
                    figures.setdefault(traffic_class, {})[name] = _OF_FIGURES.validate_json(text)
                else:
                    held.append(_OF_HELD.validate_json(text))
            except ValidationError:  # of another version of the software: it is learnt again
                continue
        return Learnt(figures, held)

    def write(self, learnt: Learnt) -> None:
        """Keep what changed since the last write, and no condition that is gone."""
        texts = dict(_texts(learnt))
        changed = {place: text for place, text in texts.items() if self._written.get(place) != text}
        gone = [place for place in self._written if place[0] == _HELD and place not in texts]
        if not changed and not gone:
            return
        of, now = eligibility.c, time.time()
        names = ("kind", "traffic_class", "name")
        rows = [dict(zip(names, place, strict=True), state=text, kept_at=now) for place, text in changed.items()]
        with self._database.write() as connection:
            replaced = tuple_(of.kind, of.traffic_class, of.name).in_([*changed, *gone])
            connection.execute(delete(eligibility).where(replaced | (of.kept_at < now - _KEPT_S)))
            if rows:
                connection.execute(insert(eligibility), rows)
        self._written = {place: text for place, text in self._written.items() if place not in gone} | changed


def _texts(learnt: Learnt) -> Iterable[tuple[Place, str]]:
    for traffic_class, by_proposer in learnt.figures.items():
        for proposer, figures in by_proposer.items():
            yield (_FIGURES, traffic_class, proposer), _OF_FIGURES.dump_json(figures).decode()
    for judged in learnt.held:
        digest = sha256(canonical([judged.proposers, judged.condition, judged.min, judged.until]).encode())
        yield (_HELD, judged.traffic_class, digest.hexdigest()), _OF_HELD.dump_json(judged).decode()

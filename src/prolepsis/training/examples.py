"""What a run learns from: a rule's examples, each text once, of which those that came last are held out."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.core.learning import DatasetManifest, Example, tenant_digest
from prolepsis.training.evaluation import LEAST_DOCUMENTS

_HELD_OUT_PARTS = 5  # one of which is held out
_ENDING = 64
"""Tokens at the end of an example; those that share them count once, so that no text is learnt by its copies."""


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """Of the target that a run learns for."""

    target: str  # `LoadedModel.identity`
    tokenizer: str  # as `Example.tokenizer`


@dataclass(frozen=True, slots=True)
class Split:
    training: Sequence[Example]
    held_out: Sequence[Example]  # they began later than all the others


def dataset_of(
    examples: Iterable[Example], terms: LearningTerms, info: Fingerprints, now: float
) -> tuple[DatasetManifest, Split] | str:
    """Return the data set of a rule's examples that began until `now`, or in words what it lacks.

    Its base text is named later: it may have to be written, which pays for a data set only.
    """
    given = [example for example in examples if example.tenant in terms.tenants and example.at <= now]
    read = [example for example in given if example.tokenizer == info.tokenizer]
    usable = _distinct(example for example in read if example.prompt and len(example.answer) > 1)
    if terms.serves == "all":
        num_tenants = len({example.tenant for example in usable})
        if num_tenants < terms.min_tenants:
            return f"there are examples of {num_tenants} of {terms.min_tenants} tenants"
        usable = _levelled(usable)
    if len(usable) < 2 * LEAST_DOCUMENTS:
        others = f"; {len(given) - len(read)} more are of another tokenizer" if len(given) > len(read) else ""
        return f"there are {len(usable)} of {2 * LEAST_DOCUMENTS} different examples{others}"
    first = usable[-max(LEAST_DOCUMENTS, len(usable) // _HELD_OUT_PARTS)].at
    split = Split([example for example in usable if example.at < first], [e for e in usable if e.at >= first])
    return _manifest(usable, terms, info, now, first), split


def _distinct(examples: Iterable[Example]) -> list[Example]:
    """Return the examples by time: of a conversation the longest only, and of those that end alike the oldest."""
    ordered = sorted(examples, key=lambda example: (_ids(example), -example.at))
    longest = [
        example
        for example, following in zip_longest(ordered, ordered[1:])  # whatever begins with it comes next
        if following is None or _ids(following)[: len(_ids(example))] != _ids(example)
    ]
    by_time = sorted(longest, key=lambda example: (example.at, example.example_id))
    oldest = {_ids(example)[-_ENDING:]: example for example in reversed(by_time)}
    return [example for example in by_time if oldest[_ids(example)[-_ENDING:]] is example]


def _levelled(examples: Sequence[Example]) -> list[Example]:
    """Leave out the oldest examples of a tenant that has more than half of all tokens."""
    num_tokens = Counter[str]()
    for example in examples:
        num_tokens[example.tenant] += len(_ids(example))
    [(largest, most)] = num_tokens.most_common(1)
    excess = 2 * most - num_tokens.total()
    kept = []
    for example in examples:
        if example.tenant == largest and excess > 0:
            excess -= len(_ids(example))
        else:
            kept.append(example)
    return kept


def _manifest(
    examples: Sequence[Example], terms: LearningTerms, info: Fingerprints, now: float, held_out_from: float
) -> DatasetManifest:
    ids: dict[str, list[str]] = {}
    num_tokens = Counter[str]()
    for example in examples:
        ids.setdefault(tenant_digest(example.tenant), []).append(example.example_id[:16])
        num_tokens[example.traffic_class] += len(_ids(example))
    return DatasetManifest(
        rule=examples[0].rule,
        made_at=now,
        first_at=examples[0].at,
        last_at=examples[-1].at,
        target=info.target,
        tokenizer=info.tokenizer,
        filters=terms.model_dump(mode="json"),
        examples={tenant: tuple(sorted(own)) for tenant, own in ids.items()},
        num_tokens=dict(num_tokens),
        held_out_from=held_out_from,
        base="",
    )


def _ids(example: Example) -> tuple[int, ...]:
    return example.prompt + example.answer

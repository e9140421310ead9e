"""What a run learns from: a rule's examples, each text once, of which those that came last are held out."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate, zip_longest

from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.core.errors import ConfigError
from prolepsis.core.learning import DatasetManifest, Example, short_id, tenant_digest
from prolepsis.training.evaluation import LEAST_DOCUMENTS

_HELD_OUT_PARTS = 5  # one of which is held out


def dataset_of(
    examples: Iterable[Example], terms: LearningTerms, now: float, *, target: str, tokenizer: str
) -> tuple[DatasetManifest, Sequence[Example]]:
    """Return the data set of a rule's examples that began until `now`, and these; raises `ConfigError` for too few.

    Those from the manifest's `held_out_from` on are held out, which are those drawn by chance where these are enough.
    Its base text is named later: it may have to be written, which pays for a data set only.
    """
    usable = _distinct(
        example
        for example in examples
        if (example.tenant in terms.tenants and example.tokenizer == tokenizer and example.at <= now)
        if example.prompt and len(example.answer) > 1
    )
    if terms.serves == "all":
        num_tenants = len({example.tenant for example in usable})
        if num_tenants < terms.min_tenants:
            raise ConfigError(f"there are examples of {num_tenants} of {terms.min_tenants} tenants", param="rule")
        usable = _levelled(usable)
    if len(usable) < 2 * LEAST_DOCUMENTS:
        raise ConfigError(f"there are {len(usable)} of {2 * LEAST_DOCUMENTS} different examples", param="rule")
    held_out_from = usable[-max(LEAST_DOCUMENTS, len(usable) // _HELD_OUT_PARTS)].at
    drawn = [example for example in usable if example.at >= held_out_from and example.by_chance]
    if len(drawn) >= LEAST_DOCUMENTS:  # the others are those that drafts fitted badly, where chance alone brings a gain
        usable = [*(example for example in usable if example.at < held_out_from), *drawn]
    ids = defaultdict[str, list[str]](list)
    for example in usable:
        ids[tenant_digest(example.tenant)].append(short_id(example.example_id))
    manifest = DatasetManifest(
        rule=usable[0].rule,
        made_at=now,
        first_at=usable[0].at,
        last_at=usable[-1].at,
        target=target,
        tokenizer=tokenizer,
        filters=terms.model_dump(mode="json"),
        examples={tenant: tuple(sorted(own)) for tenant, own in ids.items()},
        held_out_from=held_out_from,
        base="",
    )
    return manifest, usable


def _distinct(examples: Iterable[Example]) -> list[Example]:
    """Return the examples by time, of a conversation the longest only: the others are in it."""
    ordered = sorted(examples, key=lambda example: (_ids(example), -example.at))
    longest = [
        example
        for example, following in zip_longest(ordered, ordered[1:])  # whatever begins with it comes next
        if following is None or _ids(following)[: len(_ids(example))] != _ids(example)
    ]
    return sorted(longest, key=lambda example: (example.at, example.example_id))


def _levelled(examples: Sequence[Example]) -> list[Example]:
    """Leave out the oldest examples of a tenant that has more than half of all tokens."""
    num_tokens = Counter[str]()
    for example in examples:
        num_tokens[example.tenant] += len(_ids(example))
    [(largest, most)] = num_tokens.most_common(1)
    excess = 2 * most - num_tokens.total()
    before = accumulate((len(_ids(example)) * (example.tenant == largest) for example in examples), initial=0)
    pairs = zip(examples, before, strict=False)
    return [example for example, left_out in pairs if example.tenant != largest or left_out >= excess]


def _ids(example: Example) -> tuple[int, ...]:
    return example.prompt + example.answer

from dataclasses import dataclass, field

import pytest

from prolepsis.core.errors import VocabularyMismatch
from prolepsis.engine.drafting.proposers.vocabulary import require_same_vocabulary


@dataclass
class FakeVocabulary:
    fingerprint: str
    vocab: dict[str, int] = field(default_factory=dict)


def test_equal_ids_are_accepted_despite_other_differences() -> None:
    require_same_vocabulary(FakeVocabulary("a", {"x": 0}), FakeVocabulary("b", {"x": 0}))


def test_says_what_differs() -> None:
    draft = FakeVocabulary("a", {"x": 0, "y": 1, "z": 2})
    target = FakeVocabulary("b", {"x": 0, "y": 5})
    with pytest.raises(VocabularyMismatch) as error:
        require_same_vocabulary(draft, target)
    assert "3 tokens in the draft, 2 in the target, 2 differ" in str(error.value)
    assert "'y': 1 in the draft, 5 in the target" in str(error.value)
    assert "'z': 2 in the draft, absent in the target" in str(error.value)

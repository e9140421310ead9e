"""Tokenizers of kind "llama" cut text as SentencePiece does, here in its few lines, and put it together again."""

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.gguf_file import BYTE, CONTROL, NORMAL, USER_DEFINED
from prolepsis.engine.models.files.gguf_tokenizer import SentencePieceVocabulary
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from prolepsis.engine.text.token_bytes import SPACE
from tests.engine.models.files.vocabularies import Fields, write_vocabulary

CONTROLS = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
OWN = ["\n", "\n\n", "\n\n\n", "  ", "   "]
ALPHABET = f"abc=.{SPACE}"
FUZZ = "aabbc==== \n.\u00e9\U0001f642"


def vocabulary(seed: int) -> SentencePieceVocabulary:
    """All bytes, the alphabet, and words of two to four letters that are made of shorter ones, in random order."""
    rng = random.Random(seed)
    words = list(ALPHABET)
    while len(words) < 120:
        word = rng.choice(words) + rng.choice(words)
        if len(word) <= 4 and word not in words:
            words.append(word)
    merged = words[len(ALPHABET) :]
    rng.shuffle(merged)
    rows = [
        *((token, -1000.0, CONTROL) for token in CONTROLS),
        *((token, -1000.0, USER_DEFINED) for token in OWN),
        *((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)),
        *((token, -float(i), NORMAL) for i, token in enumerate([*merged, *ALPHABET])),
    ]
    return SentencePieceVocabulary(*(list(column) for column in zip(*rows, strict=True)))


def merged(text: str, known: SentencePieceVocabulary) -> list[int]:
    """Cut a text without user-defined tokens: the neighbours with the best union are merged, from the left."""
    rows = zip(known.tokens, known.scores, known.kinds, strict=True)
    scores = {token: score for token, score, kind in rows if kind == NORMAL}
    symbols = list(text.replace(" ", SPACE))
    while pairs := [(scores[a + b], -i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]:
        at = -max(pairs)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    spelled = [[s] if s in scores else [f"<0x{byte:02X}>" for byte in s.encode()] for s in symbols]
    return [known.tokens.index(token) for tokens in spelled for token in tokens]


def cut(text: str, known: SentencePieceVocabulary) -> list[int]:
    """Take user-defined tokens out of a text, the longest first, and cut what is between them."""
    found, start, at = [], 0, 0
    while at < len(text):
        own = max((token for token in OWN if text.startswith(token, at)), key=len, default="")
        if own:
            found += [*merged(text[start:at], known), known.tokens.index(own)]
            start = at = at + len(own)
        else:
            at += 1
    return [*found, *merged(text[start:], known)]


def write(
    path: Path, known: SentencePieceVocabulary, *, scores: Sequence[float] | None = None, **settings: bool
) -> Path:
    rows: Fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(known.tokens),
        "tokenizer.ggml.scores": list(known.scores if scores is None else scores),
        "tokenizer.ggml.token_type": list(known.kinds),
    }
    ids = {f"tokenizer.ggml.{name}_token_id": token for name, token in (("eos", 1), ("bos", 2), ("unknown", 3))}
    return write_vocabulary(
        path, {**rows, **ids, **{f"tokenizer.ggml.{key}": value for key, value in settings.items()}}
    )


def without_prefix(folder: Path, known: SentencePieceVocabulary) -> ModelTokenizer:
    return load_tokenizer(write(folder / "m.gguf", known, add_space_prefix=False))


@pytest.mark.parametrize("seed", range(5))
def test_text_is_cut_as_sentencepiece_cuts_it(tmp_path: Path, seed: int) -> None:
    known, rng = vocabulary(seed), random.Random(seed)
    tokenizer = without_prefix(tmp_path, known)
    for _ in range(300):
        text = "".join(rng.choices(FUZZ, k=rng.randint(0, 24)))
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == cut(text, known), text
        assert tokenizer.decode(ids) == text == b"".join(map(tokenizer.token_bytes, ids)).decode()


def test_a_run_of_one_character_is_cut_from_the_left(tmp_path: Path) -> None:
    known = vocabulary(0)
    tokens = [*known.tokens, "aaa", "aa"]
    runs = SentencePieceVocabulary(tokens, [*known.scores, 2.0, 1.0], [*known.kinds, NORMAL, NORMAL])
    tokenizer = without_prefix(tmp_path, runs)
    for length in range(1, 40):
        assert tokenizer.encode("a" * length, add_special_tokens=False) == merged("a" * length, runs)


def test_a_prefix_is_a_space_before_the_text_and_after_control_tokens(tmp_path: Path) -> None:
    known = vocabulary(1)
    tokenizer = load_tokenizer(write(tmp_path / "m.gguf", known))
    ids = tokenizer.encode("ab<end_of_turn>c", add_special_tokens=False)
    assert ids == [*merged(" ab", known), known.tokens.index("<end_of_turn>"), *merged(" c", known)]
    assert tokenizer.decode(tokenizer.encode("ab c")) == "ab c"


def test_a_text_begins_with_bos_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    known = vocabulary(2)
    assert load_tokenizer(write(tmp_path / "a.gguf", known)).encode("a")[0] == 2
    assert load_tokenizer(write(tmp_path / "b.gguf", known, add_bos_token=False)).encode("a")[0] != 2


def test_the_end_of_a_turn_ends_a_text_though_the_file_does_not_state_it(tmp_path: Path) -> None:
    known = vocabulary(3)
    tokenizer = without_prefix(tmp_path, known)
    assert tokenizer.eos_token_ids == (1, known.tokens.index("<end_of_turn>"))
    assert tokenizer.special_token_ids == frozenset(range(len(CONTROLS)))


def test_the_fingerprint_tells_vocabularies_apart(tmp_path: Path) -> None:
    first, again, other = (write(tmp_path / f"{i}.gguf", vocabulary(seed)) for i, seed in enumerate((0, 0, 1)))
    assert load_tokenizer(first).fingerprint == load_tokenizer(again).fingerprint != load_tokenizer(other).fingerprint


def test_scores_that_do_not_fit_the_tokens_are_refused(tmp_path: Path) -> None:
    known = vocabulary(4)
    path = write(tmp_path / "m.gguf", known, scores=known.scores[1:])
    with pytest.raises(ModelLoadError, match=f"{len(known.tokens)} tokens, {len(known.tokens) - 1} scores"):
        load_tokenizer(path)

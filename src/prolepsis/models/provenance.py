"""What weights trained for a target say of themselves, under the key "prolepsis" of their config.json.

"prolepsis": {
    "version": 2,
    "target": "smollm2-135m-instruct",
    "target_fingerprint": "0123456789abcdef",      LoadedModel.identity: of tokenizer and weights
    "tokenizer_fingerprint": "...",                Tokenizer.fingerprint
    "sha256": "...",                               of model.safetensors
    "source": "...",                               where it was brought from; absent where it was trained here
    "acceptance": {"all": {"hits": [...], "trials": [...]}, "code": ...},
    ...                                            how it was trained: whatever the trainer has to say
}
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prolepsis.core.errors import ModelLoadError

KEY = "prolepsis"
_TEXTS = ("target", "target_fingerprint", "tokenizer_fingerprint", "sha256", "source")


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Held-out drafts by drafted position j: those with a token to compare there, all before it right; and its hits."""

    hits: tuple[int, ...]
    trials: tuple[int, ...]

    def length(self, depth: int = 3) -> float:
        """Return the expected tokens of a step with a chain of `depth`, in [1, depth + 1]."""
        expected, survival = 1.0, 1.0
        for hit, trial in zip(self.hits[:depth], self.trials, strict=False):
            survival *= hit / trial if trial else 0.0
            expected += survival
        return expected


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where weights come from and how well they draft; empty where nothing is known."""

    version: int | None = None
    target: str = ""
    target_fingerprint: str = ""
    tokenizer_fingerprint: str = ""
    sha256: str = ""
    source: str = ""
    acceptance: Mapping[str, Acceptance] = field(default_factory=dict)
    """By kind of prompt, and "all"."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Plain JSON values."""

    @property
    def chain_of_3(self) -> float | None:
        """Expected tokens of a step with a chain of 3, held out, over all kinds of prompts; None if not measured."""
        measured = self.acceptance.get("all")
        return None if measured is None else measured.length()


def read_provenance(said: Any) -> Provenance:
    """Read what stands under `KEY`; raises `ModelLoadError` for a value of the wrong kind."""
    if not isinstance(said, Mapping):
        raise ModelLoadError(f"{KEY} is {said!r}; allowed: an object")
    texts = {name: said.get(name, "") for name in _TEXTS}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise ModelLoadError(f"{KEY}.{name} is {value!r}; allowed: a string")
    version = said.get("version")
    if version is not None and (not isinstance(version, int) or isinstance(version, bool) or version < 1):
        raise ModelLoadError(f"{KEY}.version is {version!r}; allowed: 1 and above")
    report = said.get("acceptance", {})
    if not isinstance(report, Mapping):
        raise ModelLoadError(f"{KEY}.acceptance is {report!r}; allowed: hits and trials by kind of prompt")
    known = {*_TEXTS, "version", "acceptance"}
    return Provenance(
        version=version,
        acceptance={kind: _acceptance(kind, counts) for kind, counts in report.items()},
        training={name: value for name, value in said.items() if name not in known},
        **texts,
    )


def provenance_of(folder: Path) -> Provenance | None:
    """Return what config.json of a model folder says; None where there is no such file, or it says nothing.

    Raises `ModelLoadError` where it cannot be understood.
    """
    file = folder / "config.json"
    try:
        document = json.loads(file.read_text()) if file.is_file() else {}
        said = document.get(KEY)
        return None if said is None else read_provenance(said)
    except (OSError, ValueError, AttributeError) as error:
        raise ModelLoadError(f"{file} is not the configuration of a model: {error!r}") from error


def _acceptance(kind: str, counts: Any) -> Acceptance:
    try:
        return Acceptance(tuple(map(int, counts["hits"])), tuple(map(int, counts["trials"])))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(f"{KEY}.acceptance.{kind} is {counts!r}; allowed: hits and trials") from error

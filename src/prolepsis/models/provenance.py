"""Where trained weights come from and how well they draft: the key "prolepsis" of their config.json.

"prolepsis": {
    "version": 2,
    "target": "smollm2-135m-instruct",
    "target_fingerprint": "0123456789abcdef",      LoadedModel.identity: of tokenizer and weights
    "tokenizer_fingerprint": "...",                Tokenizer.fingerprint
    "sha256": "...",                               of model.safetensors
    "source": "...",                               where it was imported from; absent if trained here
    "acceptance": {"all": {"hits": [...], "trials": [...]}, "code": ...},
    ...                                            how it was trained, as the trainer reports it
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
    """Held-out drafts by position: `trials` reached it with every earlier token right, `hits` were right there."""

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
    """Where weights come from and how well they draft; empty if unknown."""

    version: int | None = None
    target: str = ""
    target_fingerprint: str = ""
    tokenizer_fingerprint: str = ""
    sha256: str = ""
    source: str = ""
    acceptance: Mapping[str, Acceptance] = field(default_factory=dict)
    """By kind of prompt, and under "all" for all."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Plain JSON values."""

    @property
    def chain_of_3(self) -> float | None:
        """Expected tokens of a step with a chain of 3, held out, over all kinds of prompts; None if not measured."""
        measured = self.acceptance.get("all")
        return None if measured is None else measured.length()


def read_provenance(value: Any) -> Provenance:
    """Read the value under `KEY`; raises `ModelLoadError` for one of the wrong kind."""
    if not isinstance(value, Mapping):
        raise ModelLoadError(f"{KEY} is {value!r}; allowed: an object")
    texts = {name: value.get(name, "") for name in _TEXTS}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise ModelLoadError(f"{KEY}.{name} is {text!r}; allowed: a string")
    version = value.get("version")
    if version is not None and (not isinstance(version, int) or isinstance(version, bool) or version < 1):
        raise ModelLoadError(f"{KEY}.version is {version!r}; allowed: 1 and above")
    report = value.get("acceptance", {})
    if not isinstance(report, Mapping):
        raise ModelLoadError(f"{KEY}.acceptance is {report!r}; allowed: hits and trials by kind of prompt")
    known = {*_TEXTS, "version", "acceptance"}
    return Provenance(
        version=version,
        acceptance={kind: _acceptance(kind, counts) for kind, counts in report.items()},
        training={name: fact for name, fact in value.items() if name not in known},
        **texts,
    )


def provenance_of(folder: Path) -> Provenance | None:
    """Return the provenance in config.json of a model folder, None if there is none.

    Raises `ModelLoadError` if it cannot be read.
    """
    file = folder / "config.json"
    try:
        document = json.loads(file.read_text()) if file.is_file() else {}
        value = document.get(KEY)
        return None if value is None else read_provenance(value)
    except (OSError, ValueError, AttributeError) as error:
        raise ModelLoadError(f"{file} is not the configuration of a model: {error!r}") from error


def _acceptance(kind: str, counts: Any) -> Acceptance:
    try:
        return Acceptance(tuple(map(int, counts["hits"])), tuple(map(int, counts["trials"])))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(f"{KEY}.acceptance.{kind} is {counts!r}; allowed: hits and trials") from error

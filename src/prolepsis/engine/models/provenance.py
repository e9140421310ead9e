"""The provenance of trained weights and how well they draft: the key "prolepsis" of their config.json.

"prolepsis": {
    "version": 2,
    "target": "smollm2-135m-instruct",
    "target_fingerprint": "0123456789abcdef...",   LoadedModel.identity: of weights, 32 digits
    "tokenizer_fingerprint": "...",                Tokenizer.fingerprint
    "sha256": "...",                               of model.safetensors
    "source": "...",                               where it was imported from; absent if trained here
    "acceptance": {"all": {"hits": [...], "trials": [...]}, "code": ...},
    ...                                            how it was trained, as the trainer reports it
}
"""

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prolepsis.core.errors import ModelLoadError
from prolepsis.core.validation import first_problem

KEY = "prolepsis"


def expected_tokens(rates: Sequence[float]) -> float:
    """Return 1 + the sum over j of a_1 * ... * a_j, the tokens of a step whose drafted token j is accepted at a_j."""
    return 1.0 + float(sum(accumulate(rates, mul)))


class Acceptance(BaseModel):
    """Held-out drafts by position: `trials` reached it with every earlier token right, `hits` were right there."""

    model_config = ConfigDict(frozen=True)

    hits: tuple[int, ...]
    trials: tuple[int, ...]

    def length(self, depth: int = 3) -> float:
        """Return the expected tokens of a step with a chain of `depth`, in [1, depth + 1]."""
        rates = [hit / trial if trial else 0.0 for hit, trial in zip(self.hits, self.trials, strict=False)]
        return expected_tokens(rates[:depth])


class Provenance(BaseModel):
    """Origin of weights and how well they draft; empty if unknown."""

    model_config = ConfigDict(frozen=True, extra="allow")

    version: Annotated[int, Field(strict=True, ge=1)] | None = None
    target: str = ""
    target_fingerprint: str = ""
    tokenizer_fingerprint: str = ""
    sha256: str = ""
    source: str = ""
    parent: str = ""  # NAME@VERSION of the head that a learnt one was trained from
    manifests: tuple[str, ...] = ()  # data sets that it learnt from (`core.learning.DatasetManifest`)
    serves: tuple[str, ...] = ()  # digests of the tenants that it may draft for; empty: for everybody
    acceptance: dict[str, Acceptance] = {}  # by kind of prompt, and under "all" for all

    @property
    def training(self) -> Mapping[str, Any]:
        return self.model_extra or {}

    @property
    def chain_of_3(self) -> float | None:
        """Expected tokens of a step with a chain of 3, held out, over all kinds of prompts; None if not measured."""
        measured = self.acceptance.get("all")
        return None if measured is None else measured.length()


def read_provenance(value: Any) -> Provenance:
    """Read the value under `KEY`; raises `ModelLoadError` for one of the wrong kind."""
    try:
        return Provenance.model_validate(value)
    except ValidationError as error:
        problem = first_problem(error, Provenance, value)
        place = f"{KEY}.{problem.where}".rstrip(".")
        raise ModelLoadError(f"{place} {problem.message}") from error


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

"""generation_config.json of a model folder: tokens that end a text, and recommended sampling parameters."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prolepsis.core.errors import InvalidParameter, ModelLoadError
from prolepsis.core.requests import SamplingDefaults

FILE = "generation_config.json"
_PARAMETERS: dict[str, Callable[[Any], Any]] = {
    "temperature": float,
    "top_p": float,
    "top_k": lambda value: max(0, int(value)),
    "min_p": float,
    "repetition_penalty": float,
}


def generation_eos(folder: Path) -> list[int]:
    return token_ids(json_object(folder / FILE).get("eos_token_id"))


def generation_sampling(folder: Path) -> SamplingDefaults | None:
    """Return the sampling parameters that the file recommends; None if it is missing or has none.

    Raises `ModelLoadError` for a value that sampling cannot take.
    """
    document = json_object(folder / FILE)
    named = {name: value for name in _PARAMETERS if (value := document.get(name)) is not None}
    return sampling_of(named, FILE, str(folder / FILE))


def sampling_of(named: Mapping[str, Any], source: str, place: str) -> SamplingDefaults | None:
    """Return the sampling parameters that `place` names; None for none. A negative top_k turns it off, as 0 does.

    Raises `ModelLoadError` for a value that sampling cannot take.
    """
    if not named:
        return None
    try:
        values = {name: _PARAMETERS[name](value) for name, value in named.items()}
        defaults = SamplingDefaults(**values, source=source)
        defaults.validate()
    except (TypeError, ValueError, OverflowError, InvalidParameter) as error:
        raise ModelLoadError(f"{place}: {error}") from error
    return defaults


def token_ids(value: object) -> list[int]:
    """Return the token ids that a configuration states as a number, a list or nothing; -1 is none too.

    Raises `ModelLoadError` for anything else.
    """
    stated = list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
    ids = [token for token in stated if isinstance(token, int) and not isinstance(token, bool) and token >= -1]
    if len(ids) < len(stated):
        raise ModelLoadError(f"eos_token_id is {value!r}; expected: the id of a token, or a list of such")
    return [token for token in ids if token >= 0]


def json_object(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file, an empty one if there is no file; raises `ModelLoadError` for anything else."""
    if not file.is_file():
        return {}
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{file} is not a JSON object: {error}") from error
    if not isinstance(document, dict):
        raise ModelLoadError(f"{file} is not a JSON object")
    return document

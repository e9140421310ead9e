"""The sampling parameters that a model's makers recommend: in its file, its folder, or the catalogue."""

from contextlib import suppress
from pathlib import Path

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ModelLoadError
from prolepsis.core.given_sampling import given_sampling
from prolepsis.core.requests import SamplingDefaults
from prolepsis.engine.models.files.generation_config import generation_sampling, sampling_of
from prolepsis.engine.models.files.naming import catalogue_model
from prolepsis.engine.models.files.source import ModelSource, open_model
from prolepsis.engine.models.files.store import resolve

IN_GGUF = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
"""Keys of a GGUF file; source: gguf (constants.py, Keys.General)."""


def default_sampling(
    config: EngineConfig, name: str | None = None, source: "ModelSource | None" = None
) -> SamplingDefaults:
    """Return the sampling parameters of requests that leave them out, as `config.default_sampling` says.

    What the file or the folder states counts before the catalogue; a model without either has OpenAI's. `source`: the
    model where it is open. Raises `ModelLoadError` for a recommendation that cannot be used.
    """
    given = given_sampling(config.default_sampling)
    if given.base == "openai":
        return given.over(None)
    name = name or config.model
    if source is None:
        with suppress(ModelLoadError):  # it is not here: the catalogue may know it
            source = open_model(resolve(name, config.model_dir))
    stated = generation_sampling(source) if isinstance(source, Path) else None
    if source is not None and not isinstance(source, Path):
        named = {name: value for name, key in IN_GGUF.items() if (value := source.metadata.get(key)) is not None}
        rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in named.items()}
        stated = sampling_of(rounded, "gguf", str(source.path))
    known = catalogue_model(name, source)
    return given.over(stated or (known and known.sampling) or None)

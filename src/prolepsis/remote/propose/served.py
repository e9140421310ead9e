"""Loads what a propose server drafts with."""

from typing import Literal

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError
from prolepsis.engine.build import DRAFT_MODEL, FREE_PROPOSERS
from prolepsis.engine.drafting.proposers.draft_model import DraftModelProposer
from prolepsis.engine.drafting.proposers.vocabulary import vocabulary_digest
from prolepsis.engine.memory import Loaded, plan_memory
from prolepsis.engine.models.files.store import resolve
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from prolepsis.engine.models.load import load_model
from prolepsis.remote.propose.server import ServedModel

ServedProposer = Literal["suffix", "prompt_lookup", "draft_model"]
"""Those that need of a sequence nothing but its tokens and how it is sampled."""


def served_model(config: EngineConfig, name: ServedProposer) -> ServedModel:
    """Return the proposer for engines that serve `config.model`, of which only the tokenizer is read.

    Raises `ConfigError` for a draft model that is not named, `ModelError` and `MemoryPlanError` for one of no use.
    """
    tokenizer = load_tokenizer(resolve(config.model, config.model_dir))
    vocabulary = vocabulary_digest(tokenizer)
    if name != DRAFT_MODEL:
        return ServedModel(FREE_PROPOSERS[name](config, tokenizer), vocabulary, tokenizer.vocab_size)
    if config.draft_model is None:
        raise ConfigError(f"proposer is {name!r}, but draft_model is not set", param="draft_model")
    draft = load_model(config, config.draft_model)
    info = draft.model.info
    length = config.max_model_len and min(config.max_model_len, info.max_positions)
    num_pages = plan_memory(config.model_copy(update={"max_model_len": length}), Loaded(info)).num_pages
    proposer = DraftModelProposer(draft.model, draft.tokenizer, tokenizer, num_pages=num_pages)
    return ServedModel(proposer, vocabulary, min(info.vocab_size, tokenizer.vocab_size))

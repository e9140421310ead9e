"""Tiny random models with the tokenizer of a family: a vocabulary's file, a chat template, and a few small layers.

Their text is noise, and it repeats: of all tokens a few are likely, so greedy answers soon run in circles, where drafts
are accepted. What a test wants them to write, a grammar or a bias makes them write.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import torch
from transformers import PreTrainedModel

from prolepsis.core.marks import RESULT, RESULT_END
from prolepsis.engine.models.files.gguf_file import NORMAL, USER_DEFINED, GgufFile
from prolepsis.engine.models.files.tokenizer_files import save_tokenizer
from tests.engine.models.files.gguf_files import write_gguf
from tests.engine.models.files.vocabularies import (
    TEMPLATE_KEY,
    Fields,
    fields_of,
    tokens_of,
    with_tokens,
    write_vocabulary,
)
from tests.engine.models.tiny import random_model

MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>", RESULT, RESULT_END)
MAX_POSITIONS = 16384
NUM_LIKELY = 48
"""Tokens that a random text is made of."""
LIKELY = 6.0
"""How much larger their rows of the output head are."""
STEADY = 10.0
"""How much larger embeddings are: what follows a token hangs on the token, more than on those before it."""


@dataclass(frozen=True, slots=True)
class Family:
    """What a tiny model is made of."""

    vocabulary: Path
    """A GGUF file; its tensors, if any, are not read."""
    template: str
    added: Mapping[str, int] = field(default_factory=dict)
    """Tokens beyond the vocabulary's, with their kinds in GGUF: CONTROL or USER_DEFINED."""
    hidden: int = 64
    layers: int = 2
    seed: int = 7

    def tokenizer(self) -> Fields:
        """Return vocabulary and template; the template's marks are tokens, and its end of a turn ends a text."""
        marks = {mark: USER_DEFINED for mark in sorted(MARKS) if mark in self.template}
        fields = with_tokens(fields_of(self.vocabulary), marks | dict(self.added))
        tokens = tokens_of(fields)
        written = [end for end in GgufFile(self.vocabulary).end_tokens() if tokens[end] in self.template]
        end = {"tokenizer.ggml.eos_token_id": written[0]} if written else {}
        return {**fields, TEMPLATE_KEY: self.template, **end}

    def model(self, fields: Fields) -> PreTrainedModel:
        """Return a random model of Llama's kind with a row for each token."""
        sizes = {"hidden_size": self.hidden, "num_hidden_layers": self.layers, "num_attention_heads": 2, "head_dim": 32}
        rows = {"vocab_size": len(tokens_of(fields)), "max_position_embeddings": MAX_POSITIONS}
        model = random_model("llama", {**sizes, **rows}, self.seed)
        with torch.no_grad():
            model.get_input_embeddings().weight *= STEADY
            model.get_output_embeddings().weight[self._likely(fields)] *= LIKELY
        return model

    def _likely(self, fields: Fields) -> torch.Tensor:  # [NUM_LIKELY] int64
        kinds = fields["tokenizer.ggml.token_type"]
        assert isinstance(kinds, list)
        normal = torch.tensor([i for i, kind in enumerate(kinds) if kind == NORMAL])
        return normal[torch.randperm(len(normal), generator=torch.Generator().manual_seed(self.seed))[:NUM_LIKELY]]


def write_family(out: Path, family: Family) -> Path:
    """Write the model to `out`: a GGUF file in Q8_0 if it ends so, else a folder of transformers in bfloat16."""
    fields = family.tokenizer()
    model = family.model(fields)
    if out.suffix == ".gguf":
        write_gguf(out, model, "llama", kind=gguf.GGMLQuantizationType.Q8_0, tokenizer=fields)
        return out
    out.mkdir(parents=True, exist_ok=True)
    file = write_vocabulary(out / "vocabulary.gguf", fields)
    model.config.eos_token_id = model.generation_config.eos_token_id = list(GgufFile(file).end_tokens())
    model.to(torch.bfloat16).save_pretrained(out)
    save_tokenizer(file, out)
    file.unlink()
    return out

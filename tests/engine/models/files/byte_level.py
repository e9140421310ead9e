"""A byte-level tokenizer with the control tokens of many models."""

from functools import cache

from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from prolepsis.engine.models.files.tokenizer_files import with_formats
from prolepsis.engine.text.model_tokenizer import ModelTokenizer, TokenizerParts

SPECIAL = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>"),
)
STRIPPING = "<|end|>"
ADDED = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>", "<table>")
"""Not special; templates write all but the last."""
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}


@cache
def byte_level(template: str) -> ModelTokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("<", "|"), ("|", ">"), ("i", "m"), ("t", "h"), ("th", "e"), ("Ġ", "the")]
    vocab = {token: i for i, token in enumerate([*letters, *(a + b for a, b in pairs)])}
    backend = Backend(BPE(vocab=vocab, merges=pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    backend.add_special_tokens([AddedToken(STRIPPING, normalized=False, rstrip=True)])
    backend.add_tokens([AddedToken(token, normalized=False) for token in ADDED])
    return ModelTokenizer(with_formats(TokenizerParts(backend, template, NAMES, ())))

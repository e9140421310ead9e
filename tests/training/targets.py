"""A tiny random model with a tokenizer of single bytes and a chat template, as a folder."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from prolepsis.core.config import EngineConfig
from tests.engine.models.tiny import save_tiny

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def save_target(folder: Path, template: str | None = TEMPLATE, *, native: bool = False) -> Path:
    """Write the model and return `folder`; token 2 ends a text. `native`: in a shape that the native forward runs."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    shape: dict[str, object] = {"vocab_size": len(vocab), "num_hidden_layers": 4, "tie_word_embeddings": True}
    save_tiny(folder, "llama", shape | ({"head_dim": 32} if native else {}))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def config_of(folder: Path) -> EngineConfig:
    """Return the configuration of an engine for the model in `folder`."""
    return EngineConfig(model=str(folder), forward="lean", kv_memory="64MiB", threads=1, max_step_tokens=64)

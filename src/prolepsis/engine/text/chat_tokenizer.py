"""A conversation's first turn as tokens; the part of a tokenizer that this takes, without loading one."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from prolepsis.core.errors import InvalidParameter


class ChatTokenizer(Protocol):
    """`engine.text.model_tokenizer.Tokenizer` is the real one."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def chat_template(self) -> str | None: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def apply_chat_template(self, messages: Sequence[Mapping[str, object]]) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...


def encode_message(text: str, tokenizer: ChatTokenizer, *, system: str | None = None) -> list[int]:
    """Apply the model's chat template to a user's message; a model that has none gets the text to continue it.

    Raises `InvalidParameter` for a system message that no template can take.
    """
    if tokenizer.chat_template is None:
        if system is not None:
            message = "the model has no chat template, so it takes no system message; allowed: a prompt to continue"
            raise InvalidParameter(message, param="system")
        return tokenizer.encode(text)
    messages = [] if system is None else [{"role": "system", "content": system}]
    return tokenizer.apply_chat_template([*messages, {"role": "user", "content": text}])

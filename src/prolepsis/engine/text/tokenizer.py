"""The interfaces of a tokenizer for the HTTP side and for commands, and a conversation's first turn as tokens."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from prolepsis.core.errors import InvalidParameter
from prolepsis.engine.text.answer_formats.formats import AnswerFormats
from prolepsis.engine.text.named_tokens import FillMarks


class ChatTokenizer(Protocol):
    """The part of a tokenizer that commands take."""

    @property
    def chat_template(self) -> str | None: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def apply_chat_template(self, messages: Sequence[Mapping[str, object]]) -> list[int]: ...


class Tokenizer(ChatTokenizer, Protocol):
    """Text to token ids and back. Safe to use from several threads."""

    @property
    def formats(self) -> AnswerFormats:
        """How the model writes calls and reasoning."""

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """The model's bos_token, eos_token, unk_token and pad_token, if it has them."""

    @property
    def fill_marks(self) -> FillMarks | None:
        """None: the model fills no middle."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return a token's own bytes, which may be a part of a character; control tokens have those of their name."""

    def shows_role(self, role: str) -> bool:
        """Say whether the chat template shows messages of a role."""

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]: ...


class VerbatimDecoder:
    """A tokenizer's decoder that shows special tokens too."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = False) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


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

"""Tokenizers with their chat template; `tokenizer_files` reads them. Nothing here knows of models or torch."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from tokenizers import Tokenizer as Backend

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.given_text import GivenText, joined
from prolepsis.engine.text.answer_formats.formats import REASONING_FORMATS, AnswerFormats
from prolepsis.engine.text.answer_formats.table import TOOL_FORMATS
from prolepsis.engine.text.chat_template import ChatTemplate, Message
from prolepsis.engine.text.control_tokens import HELD_CHARACTERS, ControlTokens
from prolepsis.engine.text.named_tokens import FillMarks, named_marks
from prolepsis.engine.text.template_needs import FittingTemplate
from prolepsis.engine.text.token_bytes import TokenBytes

_HERE = "continue-7f3"  # stands where a message is to be continued while its template is rendered


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """A tokenizer as a folder or a GGUF file states it."""

    backend: Backend
    template: str | None
    special_tokens: Mapping[str, str]
    """The model's bos_token, eos_token, unk_token and pad_token, if it has them."""
    eos_token_ids: tuple[int, ...]
    digest: str | None = None
    """SHA-256, in hexadecimal, of vocabulary and merges as the file states them; None: to be made from `backend`."""
    as_text: frozenset[str] = frozenset()
    """Tokens that the model calls special and that are text here, as answers are read by them."""
    formats: AnswerFormats = AnswerFormats()  # noqa: RUF009  # it is frozen
    """How the model writes calls and reasoning."""
    fill_marks: FillMarks | None = None  # as a file states them; None: those of the vocabulary by their names


@dataclass(frozen=True, slots=True)
class TokenizerState:
    """A tokenizer in plain values, as it travels to other processes."""

    backend: str  # JSON of the tokenizers library
    template: str | None
    special_tokens: dict[str, str]
    eos_token_ids: tuple[int, ...]
    digest: str | None
    as_text: frozenset[str]
    tools: tuple[str, bool, str] | None
    """Of the form of calls: its name, `parallel` and `between`, in which a model differs from its family."""
    reasoning: str | None  # name of the form of reasoning
    shows: tuple[bool, bool, bool]  # `shows_tools`, `shows_calls` and `shows_results` of the formats
    fill_marks: FillMarks | None


def template_of(parts: TokenizerParts) -> FittingTemplate | None:
    """Return the model's chat template, if it has one; raises `ModelLoadError` if it is broken."""
    return FittingTemplate(ChatTemplate(parts.template, parts.special_tokens)) if parts.template else None


class ModelTokenizer:
    """One model's tokenizer. Safe to use from several threads.

    Only in batches the library releases the interpreter, and a single long text would hold up all threads for seconds.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self._backend = parts.backend
        self._template = template_of(parts)
        self._control = ControlTokens(parts.backend, parts.template or "", parts.formats.texts)
        self._bytes = TokenBytes(parts.backend)
        self.eos_token_ids = parts.eos_token_ids
        self.formats = parts.formats
        self._digest = parts.digest

    def __reduce__(self) -> tuple[type["ModelTokenizer"], tuple[TokenizerParts]]:
        return ModelTokenizer, (self._parts,)

    @classmethod
    def of(cls, state: TokenizerState) -> Self:
        tools = None
        if state.tools is not None:
            name, parallel, between = state.tools
            tools = replace(TOOL_FORMATS[name], parallel=parallel, between=between)
        reasoning = REASONING_FORMATS[state.reasoning] if state.reasoning is not None else None
        return cls(
            TokenizerParts(
                Backend.from_str(state.backend),
                state.template,
                state.special_tokens,
                state.eos_token_ids,
                state.digest,
                state.as_text,
                AnswerFormats(tools, reasoning, *state.shows),
                state.fill_marks,
            )
        )

    @property
    def state(self) -> TokenizerState:
        parts, formats = self._parts, self.formats
        tools, reasoning = formats.tools, formats.reasoning
        return TokenizerState(
            parts.backend.to_str(),
            parts.template,
            dict(parts.special_tokens),
            parts.eos_token_ids,
            parts.digest,
            parts.as_text,
            (tools.name, tools.parallel, tools.between) if tools is not None else None,
            reasoning.name if reasoning is not None else None,
            (formats.shows_tools, formats.shows_calls, formats.shows_results),
            parts.fill_marks,
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`; `add_special_tokens` adds the model's tokens around a text, such as BOS.

        Control tokens in a text are found as such, except where a `GivenText` says that a caller gave it.
        """
        if isinstance(text, GivenText):
            return self._control.encode(text, add_special_tokens=add_special_tokens)
        if len(text) <= HELD_CHARACTERS:
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoding.ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if len(token_ids) <= HELD_CHARACTERS:
            return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        [text] = self._backend.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes.of(token_id)

    def shows_role(self, role: str) -> bool:
        return self._template is not None and self._template.shows_role(role)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Return the prompt of `messages`, ready for the answer unless `add_generation_prompt` is False; with
        `continue_final_message` it ends inside of the last message.

        Messages are brought into the form that the template takes. `GivenText` in messages, tools and variables never
        becomes control tokens. Raises `InvalidParameter` if the
        model has no chat template, or the template refuses the messages.
        """
        if self._template is None:
            raise InvalidParameter(
                "the model has no chat template; allowed: plain text, through completions", param="messages"
            )
        if continue_final_message:
            add_generation_prompt = False
            messages = [*messages[:-1], {**messages[-1], "content": joined((messages[-1]["content"], _HERE))}]
        text = self._template.render(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, variables=variables
        )
        end = text.rfind(_HERE) if continue_final_message else len(text)
        if end < 0:
            message = "the model's chat template does not show the last message; allowed: one of the assistant"
            raise InvalidParameter(message, param="messages")
        return self.encode(text[:end], add_special_tokens=False)

    @property
    def chat_template(self) -> str | None:
        return self._template.source if self._template else None

    @property
    def special_tokens(self) -> Mapping[str, str]:
        return self._parts.special_tokens

    @cached_property
    def fill_marks(self) -> FillMarks | None:
        return self._parts.fill_marks or named_marks(self.vocab)

    @cached_property
    def vocab(self) -> dict[str, int]:
        """Ids by token, in the vocabulary's spelling, with added tokens."""
        return self._backend.get_vocab(with_added_tokens=True)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id; a model's logits may be wider."""
        return max(self.vocab.values(), default=-1) + 1

    @property
    def num_plain(self) -> int:
        """One more than the highest id of a token that is not an added one."""
        return max(self._backend.get_vocab(with_added_tokens=False).values(), default=-1) + 1

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """Control tokens: part of a text only on request."""
        return frozenset(i for i, token in self._backend.get_added_tokens_decoder().items() if token.special)

    def to_json(self) -> str:
        """Return the tokenizer in the format of the tokenizers library, without padding and truncation."""
        state = json.loads(self._backend.to_str())
        return json.dumps(state | {"padding": None, "truncation": None})

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, over vocabulary, merges, special tokens, ends, rules of splitting and chat template.

        Formats change nothing.
        """
        steps = (self._backend.normalizer, self._backend.pre_tokenizer, self._backend.post_processor)
        rules = [sorted(self.eos_token_ids), *(step and step.__getstate__().decode() for step in steps)]
        if self._digest is not None:
            return hashlib.sha256(f"{self._digest}{self.chat_template}{rules}".encode()).hexdigest()
        state = json.loads(self._backend.to_str())
        as_text = self._parts.as_text
        added = [row | {"special": row["special"] or row["content"] in as_text} for row in state["added_tokens"]]
        parts = [sorted(self.vocab.items()), state["model"].get("merges"), added, self.chat_template, rules]
        return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()

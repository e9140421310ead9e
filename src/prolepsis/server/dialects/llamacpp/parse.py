"""Bodies of llama.cpp's API, and the completion that one stands for."""

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, Field

from prolepsis.control.web.fields import ClientBody, LogitBias, NoEffect, Schema, TopK, TopLogprobs
from prolepsis.core.validation import Number
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.server.dialects.dialect import ForeignRequest, LlamaSampling, form_of
from prolepsis.server.openai.tokenization import TemplatedBody
from prolepsis.server.preparing.bodies import CompletionBody, Messages, StructuredOutputs
from prolepsis.server.preparing.fill import Gap, fill_stop, gap_prompt

_RANDOM = (None, -1, 2**32 - 1)
"""Seeds that stand for one that is drawn."""
_NEVER = -100
_MOST = 2**31 - 1


def _pairs(value: object) -> object:
    """Read a list of tokens and their biases as the object that it stands for; a bias false forbids the token."""
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        return value
    return {str(token): _NEVER if bias is False else bias for token, bias in value}


class LlamaCppBody(ForeignRequest, LlamaSampling):
    model: str = ""  # empty: the first model that the caller may use
    n_predict: Annotated[int, Field(ge=-2, le=_MOST)] = -1  # below 0: the answer may fill the context
    stream: bool | None = None
    top_k: TopK | None = None
    logit_bias: Annotated[LogitBias, BeforeValidator(_pairs)] | None = None
    ignore_eos: bool | None = None
    n_probs: TopLogprobs = 0
    return_tokens: bool = False
    return_progress: bool = False  # A stream says how much of the prompt has been read
    grammar: str | None = None  # GBNF
    json_schema: Schema | None = None
    n_indent: Annotated[object, NoEffect()] = None
    samplers: Annotated[object, NoEffect()] = None
    t_max_predict_ms: Number | None = None
    """Above 0: the answer ends with the first line that ends so long after its first text."""
    response_fields: Annotated[list[str], Field(max_length=64)] | None = None
    """Fields of the reply, such as `timings/prompt_n`; without any all."""

    @property
    def predict_s(self) -> float | None:
        limit = self.t_max_predict_ms or 0
        return limit / 1000 if limit > 0 else None


Prompt: TypeAlias = str | list[Annotated[int, Field(ge=0, le=_MOST)] | str]
"""A text, tokens, or both in turn."""


class LlamaCppCompletionBody(LlamaCppBody):
    prompt: Prompt


class LlamaCppFile(ClientBody):
    filename: str = "tmp"
    text: str


class LlamaCppInfillBody(LlamaCppBody):
    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[LlamaCppFile], Field(max_length=1024)] | None = None
    prompt: str = ""  # the begin of the line at the place, behind `input_prefix`


class LlamaCppTemplateBody(TemplatedBody):
    messages: Messages


def parse_completion(body: LlamaCppCompletionBody, tokenizer: Tokenizer) -> CompletionBody:
    """Return the completion that means the same."""
    return _completion(body, body.prompt if isinstance(body.prompt, str) else _tokens(body.prompt, tokenizer))


def parse_infill(body: LlamaCppInfillBody, tokenizer: Tokenizer, room: int) -> CompletionBody:
    """Return the completion that fills the gap; `room`: tokens of the context, of which the answer gets up to half.

    A middle may repeat what is around it, so there is no penalty by default.
    """
    files = [(file.filename, file.text) for file in body.input_extra or ()]
    gap = Gap(body.input_prefix, body.prompt, body.input_suffix, files)
    prompt = gap_prompt(gap, tokenizer, room - min(_limit(body) or room, room // 2))
    own = {"stop": body.stop or list(fill_stop(body.input_suffix)), "repeat_penalty": body.repeat_penalty or 1.0}
    return _completion(body.model_copy(update=own), prompt)


def _tokens(parts: Sequence[int | str], tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of a prompt; where it begins with a text it has the model's tokens before a text."""
    tokens = list[int]()
    for i, part in enumerate(parts):
        tokens += tokenizer.encode(part, add_special_tokens=i == 0) if isinstance(part, str) else [part]
    return tokens


def _limit(body: LlamaCppBody) -> int | None:
    return None if body.n_predict < 0 else max(1, body.n_predict)


def _completion(body: LlamaCppBody, prompt: str | list[int]) -> CompletionBody:
    sampling = body.sampling
    if body.temperature is not None:
        sampling["temperature"] = max(0.0, body.temperature)
    return CompletionBody.model_construct(
        model=body.model,
        prompt=[prompt],
        stream=body.stream,
        max_tokens=_limit(body),
        logit_bias=body.logit_bias,
        seed=None if body.seed in _RANDOM else body.seed,
        ignore_eos=body.ignore_eos,
        logprobs=body.n_probs or None,
        structured_outputs=StructuredOutputs.model_construct(grammar=body.grammar) if body.grammar else None,
        response_format=None if body.json_schema is None else form_of(body.json_schema),
        **sampling,
    )

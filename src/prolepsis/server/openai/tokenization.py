"""The routes /tokenize, /detokenize and /tokenizer_info, in vLLM's and in llama.cpp's shapes."""

from collections.abc import Sequence
from typing import Annotated, Self

from fastapi import Request
from fastapi.responses import Response
from msgspec.json import encode
from pydantic import Field, model_validator

from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import caller_of
from prolepsis.control.web.fields import ClientBody, Count, JsonObject, Reply
from prolepsis.control.web.routes import CLIENTS, Route, Routes
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.given_text import given
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.server.answering.usage import Json
from prolepsis.server.preparing.bodies import Messages, TemplateBody, Tools
from prolepsis.server.preparing.conversation import ModelPrompt, conversation
from prolepsis.server.services import Models, Services


class TemplatedBody(TemplateBody):
    """A conversation whose prompt is asked for."""

    model: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None


class TokenizeBody(TemplatedBody):
    """Either a text or a conversation."""

    prompt: str | None = None
    content: str | None = None  # the text, as llama.cpp has it
    add_special_tokens: bool | None = None
    """Default: true for a prompt, false for others: the template of a conversation has them."""
    add_special: bool = False
    return_token_strs: bool = False
    with_pieces: bool = False
    """Each token is an object with its id and its text, or its bytes where they are a part of a character."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if [self.prompt, self.content, self.messages].count(None) != 2:
            raise ValueError("needs exactly one of 'prompt', 'messages' and 'content'")
        return self


class DetokenizeBody(ClientBody):
    model: str | None = None
    tokens: Annotated[list[Count], Field(max_length=2**20, fail_fast=True)]


class Tokenized(Reply):
    count: int
    max_model_len: int
    tokens: list[int] | list[JsonObject]
    token_strs: list[str] | None


class Detokenized(Reply):
    prompt: str
    content: str | None = None
    """The same, as llama.cpp has it; left out where the body names a model, as vLLM's clients do."""


class TokenizerInfo(Reply):
    tokenizer_class: str = "PreTrainedTokenizerFast"  # the class of transformers that reads such a tokenizer
    model_max_length: int  # tokens of the longest context that is served
    bos_token: str | None = None
    eos_token: str | None = None
    unk_token: str | None = None
    pad_token: str | None = None
    chat_template: str | None = None


def tokenization_routes(models: Models) -> Sequence[Route]:
    routes = Routes()

    @routes.post("/tokenize", roles=CLIENTS, summary="Convert text or messages to tokens", reply=Tokenized)
    async def tokenize(request: Request, body: Annotated[TokenizeBody, read_body(TokenizeBody)]) -> Response:
        services = models.of(body.model, caller_of(request))
        services.admission.admit_small(request)
        tenant = caller_of(request).tenant
        return await services.intake.large_work.off_loop(tenant, lambda: _json(_tokenized(body, services)))

    @routes.post("/detokenize", roles=CLIENTS, summary="Convert tokens to text", reply=Detokenized)
    async def detokenize(request: Request, body: Annotated[DetokenizeBody, read_body(DetokenizeBody)]) -> Response:
        services = models.of(body.model, caller_of(request))
        services.admission.admit_small(request)
        tenant = caller_of(request).tenant
        return await services.intake.large_work.off_loop(tenant, lambda: _json(_detokenized(body, services)))

    @routes.get("/tokenizer_info", roles=CLIENTS, summary="Describe the tokenizer", reply=TokenizerInfo)
    async def tokenizer_info(request: Request, model: str | None = None) -> TokenizerInfo:
        services = models.of(model, caller_of(request))
        services.admission.admit_small(request)
        tokenizer, length = services.tokenizer, services.client.info.max_model_len
        special = {
            name: token for name, token in tokenizer.special_tokens.items() if name in TokenizerInfo.model_fields
        }
        return TokenizerInfo(model_max_length=length, chat_template=tokenizer.chat_template, **special)

    return routes.all


def _json(value: Json) -> Response:
    """Return a reply that may hold a hundred thousand tokens: `json` holds the interpreter four times as long."""
    return Response(encode(value), media_type="application/json")


def _detokenized(body: DetokenizeBody, services: Services) -> Json:
    largest = services.client.info.vocab_size - 1
    wrong = next((token for token in body.tokens if token > largest), None)
    if wrong is not None:
        raise InvalidParameter(f"tokens holds {wrong}; allowed: 0 to {largest}", param="tokens")
    text = services.tokenizer.decode(body.tokens, skip_special_tokens=False)
    return {"prompt": text} if body.model else {"prompt": text, "content": text}


def _tokenized(body: TokenizeBody, services: Services) -> Json:
    tokenizer, text = services.tokenizer, body.content if body.prompt is None else body.prompt
    if text is not None:
        by_default = body.add_special or body.prompt is not None
        adds = by_default if body.add_special_tokens is None else body.add_special_tokens
        tokens = tokenizer.encode(given(text) if body.parse_special is False else text, add_special_tokens=adds)
    else:
        if body.add_special_tokens:
            message = "add_special_tokens is true with messages; allowed: false, as the chat template has them"
            raise InvalidParameter(message, param="add_special_tokens")
        tokens = templated(body, tokenizer)
    texts = None
    if body.return_token_strs:
        texts = [tokenizer.decode([token], skip_special_tokens=False) for token in tokens]
    shown = [_piece(token, tokenizer) for token in tokens] if body.with_pieces else tokens
    length = services.client.info.max_model_len
    return {"count": len(tokens), "max_model_len": length, "tokens": shown, "token_strs": texts}


def templated(body: TemplatedBody, tokenizer: Tokenizer) -> list[int]:
    """Return the prompt of a conversation; raises `InvalidParameter` where the template refuses it."""
    functions = [tool.function for tool in body.tools or ()]
    return [*ModelPrompt.of(conversation(body.messages or [], functions, body, tokenizer), tokenizer).token_ids]


def _piece(token: int, tokenizer: Tokenizer) -> Json:
    raw = tokenizer.token_bytes(token)
    try:
        return {"id": token, "piece": raw.decode()}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(raw)}

"""The routes /tokenize, /detokenize and /tokenizer_info, in vLLM's shapes."""

from collections.abc import Sequence
from typing import Annotated, Self

from fastapi import Request
from fastapi.responses import Response
from msgspec.json import encode
from pydantic import Field, model_validator

from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import caller_of
from prolepsis.control.web.fields import ClientBody, Count, Reply
from prolepsis.control.web.routes import CLIENTS, Route, Routes
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.given_text import given
from prolepsis.server.openai.bodies import Messages, TemplateBody, Tools
from prolepsis.server.openai.conversation import prompt_tokens
from prolepsis.server.openai.usage import Json
from prolepsis.server.services import Models, Services


class TokenizeBody(TemplateBody):
    """Either a text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    """Default: true for a text, false for a conversation, whose template has them."""
    return_token_strs: bool = False
    tools: Tools | None = None
    parse_special: bool | None = None
    """What reads like a control token becomes one; default: true for a text, false for a conversation."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("needs either 'prompt' or 'messages'")
        return self


class DetokenizeBody(ClientBody):
    model: str | None = None
    tokens: Annotated[list[Count], Field(max_length=2**20, fail_fast=True)]


class Tokenized(Reply):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Reply):
    prompt: str


class TokenizerInfo(Reply):
    tokenizer_class: str = "PreTrainedTokenizerFast"
    """The class of transformers that reads such a tokenizer."""
    model_max_length: int
    """Tokens of the longest context that is served."""
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
        return await services.intake.large_work.off_loop(
            tenant, lambda: _json({"prompt": _detokenized(body, services)})
        )

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


def _detokenized(body: DetokenizeBody, services: Services) -> str:
    largest = services.client.info.vocab_size - 1
    wrong = next((token for token in body.tokens if token > largest), None)
    if wrong is not None:
        raise InvalidParameter(f"tokens holds {wrong}; allowed: 0 to {largest}", param="tokens")
    return services.tokenizer.decode(body.tokens, skip_special_tokens=False)


def _tokenized(body: TokenizeBody, services: Services) -> Json:
    if body.prompt is not None:
        text = given(body.prompt) if body.parse_special is False else body.prompt
        tokens = services.tokenizer.encode(text, add_special_tokens=body.add_special_tokens is not False)
    else:
        if body.add_special_tokens:
            message = "add_special_tokens is true with messages; allowed: false, as the chat template has them"
            raise InvalidParameter(message, param="add_special_tokens")
        tokens = prompt_tokens(
            body.messages or [],
            [tool.function for tool in body.tools or ()],
            services.tokenizer,
            body.template_variables,
            add_generation_prompt=body.add_generation_prompt is not False,
            continue_final_message=bool(body.continue_final_message),
            parse_special=bool(body.parse_special),
        )
    texts = None
    if body.return_token_strs:
        texts = [services.tokenizer.decode([token], skip_special_tokens=False) for token in tokens]
    length = services.client.info.max_model_len
    return {"count": len(tokens), "max_model_len": length, "tokens": tokens, "token_strs": texts}

"""POST /tokenize and POST /detokenize, in vLLM's shapes."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from prolepsis.core.errors import InvalidParameter
from prolepsis.server.body_reader import read_body
from prolepsis.server.caller import caller_of
from prolepsis.server.conversation import prompt_tokens
from prolepsis.server.formats import Json
from prolepsis.server.off_loop import in_thread
from prolepsis.server.room import Room
from prolepsis.server.tokenize_bodies import DetokenizeBody, TokenizeBody


def tokenization_routes(room: Room) -> APIRouter:
    router = APIRouter()

    @router.post("/tokenize")
    async def tokenize(request: Request) -> JSONResponse:
        body = await read_body(request, TokenizeBody, room.config.max_body_bytes)
        if body.model is not None:
            room.check_model(body.model, caller_of(request))
        room.gate.receive_small(request)
        return JSONResponse(await in_thread(lambda: _tokenized(body, room)))

    @router.post("/detokenize")
    async def detokenize(request: Request) -> JSONResponse:
        body = await read_body(request, DetokenizeBody, room.config.max_body_bytes)
        if body.model is not None:
            room.check_model(body.model, caller_of(request))
        largest = room.client.info.vocab_size - 1
        wrong = next((token for token in body.tokens if token > largest), None)
        if wrong is not None:
            raise InvalidParameter(f"tokens holds {wrong}; allowed: 0 to {largest}", param="tokens")
        room.gate.receive_small(request)
        text = await in_thread(lambda: room.tokenizer.decode(body.tokens, skip_special_tokens=False))
        return JSONResponse({"prompt": text})

    return router


def _tokenized(body: TokenizeBody, room: Room) -> Json:
    if body.prompt is not None:
        tokens = room.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    else:
        if body.add_special_tokens:
            message = "add_special_tokens is true with messages; allowed: false, as the chat template has them"
            raise InvalidParameter(message, param="add_special_tokens")
        tokens = prompt_tokens(
            body.messages or [],
            [tool.function for tool in body.tools or ()],
            room.tokenizer,
            body.chat_template_kwargs,
            add_generation_prompt=body.add_generation_prompt,
        )
    texts = None
    if body.return_token_strs:
        texts = [room.tokenizer.decode([token], skip_special_tokens=False) for token in tokens]
    length = room.client.info.max_model_len
    return {"count": len(tokens), "max_model_len": length, "tokens": tokens, "token_strs": texts}

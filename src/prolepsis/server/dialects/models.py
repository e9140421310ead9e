"""The models that are served, in OpenAI's shape and in Anthropic's."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from prolepsis.control.web.body_reader import parse_texts
from prolepsis.control.web.caller import SignedIn
from prolepsis.control.web.errors import ERROR_SHAPE
from prolepsis.control.web.fields import Body
from prolepsis.control.web.routes import ANY_ROLE, Route, Routes
from prolepsis.core.errors import InvalidParameter
from prolepsis.server.answering.usage import Json
from prolepsis.server.dialects.anthropic.routes import ERRORS
from prolepsis.server.openai.replies import Model, ModelList
from prolepsis.server.services import Models, Services


class ModelQuery(Body):
    limit: Annotated[int, Field(ge=1, le=1000)] = 20
    after_id: str | None = None
    before_id: str | None = None


def is_anthropic(request: Request) -> bool:
    """Return whether a request asks for Anthropic's shape; its errors then have it too."""
    if "anthropic-version" not in request.headers:
        return False
    request.scope["state"][ERROR_SHAPE] = ERRORS
    return True


def model_page(models: Sequence[Model], query: ModelQuery) -> Json:
    """Return the first models, behind `after_id` if it is given, or the last ones before `before_id`."""
    ids = [model.id for model in models]
    for field, given in (("after_id", query.after_id), ("before_id", query.before_id)):
        if given is not None and given not in ids:
            raise InvalidParameter(f"{field} is {given[:128]!r}; allowed: {', '.join(ids)}", param=field)
    begin = 0 if query.after_id is None else ids.index(query.after_id) + 1
    rest = models[begin : None if query.before_id is None else ids.index(query.before_id)]
    shown = rest[: query.limit] if query.before_id is None else rest[-query.limit :]
    ends = (shown[0].id, shown[-1].id) if shown else (None, None)
    data = [model_info(model) for model in shown]
    return {"data": data, "has_more": len(shown) < len(rest), "first_id": ends[0], "last_id": ends[1]}


def model_info(model: Model) -> Json:
    created = datetime.fromtimestamp(model.created, UTC).isoformat()
    facts = {"type": "model", "id": model.id, "display_name": model.root, "created_at": created}
    return {**facts, "lifecycle": "active", "max_input_tokens": model.max_model_len, "max_tokens": model.max_model_len}


def model_routes(models: Models) -> Sequence[Route]:
    routes = Routes()

    @routes.get("/v1/models", roles=ANY_ROLE, summary="Served models", reply=ModelList)
    async def all_models(request: Request, caller: SignedIn) -> Response | ModelList:
        shown = [_model(name, services) for name, services in models.allowed(caller).items()]
        if not is_anthropic(request):
            return ModelList(object="list", data=shown)
        return JSONResponse(model_page(shown, parse_texts(request.query_params, ModelQuery, "query")))

    @routes.get("/v1/models/{name:path}", roles=ANY_ROLE, summary="One model", reply=Model)
    async def one_model(request: Request, name: str, caller: SignedIn) -> Response | Model:
        anthropic, model = is_anthropic(request), _model(name, models.of(name, caller))
        return JSONResponse(model_info(model)) if anthropic else model

    return routes.all


def _model(name: str, services: Services) -> Model:
    info = services.client.info
    return Model(
        id=name,
        object="model",
        created=services.started,
        owned_by="prolepsis",
        root=info.model,
        max_model_len=info.max_model_len,
        default_sampling=info.default_sampling,
    )

"""The models that are served, in OpenAI's shape and in Anthropic's."""

from collections.abc import Sequence

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from prolepsis.control.web.body_reader import parse_texts
from prolepsis.control.web.caller import SignedIn
from prolepsis.control.web.routes import ANY_ROLE, Route, Routes
from prolepsis.server.dialects.anthropic.models import ModelQuery, is_anthropic, model_info, model_page
from prolepsis.server.openai.replies import Model, ModelList
from prolepsis.server.services import Models, Services


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

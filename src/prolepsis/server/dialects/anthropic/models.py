"""The models that are served, as Anthropic's API lists them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Request
from pydantic import Field

from prolepsis.control.web.errors import ERROR_SHAPE
from prolepsis.control.web.fields import Body
from prolepsis.core.errors import InvalidParameter
from prolepsis.server.answering.usage import Json
from prolepsis.server.dialects.anthropic.routes import ERRORS
from prolepsis.server.openai.replies import Model


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

"""The routes that generate, and the names that a policy may use on every server."""

from typing import Literal, get_args

from prolepsis.control.policy.check import Known
from prolepsis.control.web.caller import ROLES
from prolepsis.core.config import PROPOSER_NAMES
from prolepsis.server.admission.load_shedding import TIERS

GenerationRoute = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
GENERATION_ROUTES: tuple[GenerationRoute, ...] = get_args(GenerationRoute)
VERIFY_ROUTES = ("/v1/verify/chat/completions", "/v1/verify/completions")
"""The same for clients that draft (`server.verify`)."""
MESSAGES_ROUTE = "/v1/messages"
OLLAMA_ROUTES = ("/api/chat", "/api/generate")
FILL_ROUTE = "/v1/fim/completions"
DECISIONS_ROUTE = "/v1/decisions"
CANDIDATES_ROUTE = "/v1/candidates"
LLAMACPP_ROUTES = ("/completion", "/completions", "/infill")
"""Routes of other APIs (`server.dialects`)."""
_FOREIGN = (MESSAGES_ROUTE, *OLLAMA_ROUTES, *LLAMACPP_ROUTES)
_ROUTES = (*GENERATION_ROUTES, FILL_ROUTE, DECISIONS_ROUTE, CANDIDATES_ROUTE, *VERIFY_ROUTES, *_FOREIGN)
KNOWN = Known(proposers=PROPOSER_NAMES, tier=tuple(TIERS), roles=ROLES, route=_ROUTES)
"""Names that a policy may use on every server."""

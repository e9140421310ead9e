"""GET /admin/cost: what requests cost and what speculation saves."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from prolepsis.server.cost_replies import shown_costs
from prolepsis.server.costs import Costs


def cost_routes(costs: Costs) -> APIRouter:
    router = APIRouter()

    @router.get("/admin/cost")
    async def cost() -> JSONResponse:
        return JSONResponse(shown_costs(costs, await costs.compared()).model_dump())

    return router

"""/admin/learning: what is learnt from, the run and the heads; begins and stops runs, and retires heads."""

import asyncio
from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import Field

from prolepsis.control.controls.kill_switch import Reason, shown_reason
from prolepsis.control.learning.machine import Ended
from prolepsis.control.learning.runtime import LearningFeature
from prolepsis.control.learning.shown import LEARNING, LearningReply, shown
from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import SignedIn
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.fields import Body
from prolepsis.control.web.routes import OPERATORS, READERS, Route, Routes


class LearningBody(Body):
    act: Literal["run", "stop", "retire"]
    rule: Annotated[str, Field(max_length=64)] = ""
    """The rule to learn for, with `run`."""
    head: Annotated[str, Field(max_length=128)] = ""
    """NAME@VERSION of the head to retire."""
    reason: Reason = ""


def learning_routes(feature: LearningFeature) -> list[Route]:
    routes = Routes()

    @routes.get(LEARNING.path, roles=READERS, summary=LEARNING.help)
    async def learning() -> LearningReply:
        stored = await feature.read()
        state = feature.following.trial(stored.run)
        trial = None if state is None else await feature.rollouts.view(state.rollout_id)
        return await asyncio.to_thread(shown, feature.database, feature.policies.learning, trial=trial)

    @routes.put(LEARNING.path, roles=OPERATORS, summary="Begin or stop a run, or retire a head", errors=(404, 409))
    async def act(body: Annotated[LearningBody, read_body(LearningBody)], caller: SignedIn) -> LearningReply:
        stored, rules = await feature.read(), feature.policies.learning
        reason = await asyncio.to_thread(shown_reason, body.reason)
        why = f"by {caller.actor}" + (f": {reason}" if reason else "")
        if body.act == "stop":
            await feature.step(stored, Ended("stopped", why), caller.actor)
        elif body.act == "retire":
            _check(body.head, stored.heads, "head")
            await feature.retire(body.head, why, caller.actor)
        else:
            _check(body.rule, rules, "rule")
            if not await feature.begin(stored, body.rule, "hand", why, caller.actor):
                message = f"A run for {stored.run.rule} is under way: {stored.run.phase}. One runs at a time."
                raise RequestRefused(message, code="learning_under_way", param="rule", status=409)
        return await learning()

    return routes.all


def _check(name: str, known: Collection[str], param: str) -> None:
    if name not in known:
        message = f"{param} is {name!r}; allowed: {', '.join(known) or 'none'}"
        raise RequestRefused(message, code=f"unknown_{param}", param=param, status=404)

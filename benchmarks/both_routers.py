"""A router of Ray Serve that chooses as ours does or takes turns, as each request's cache salt says."""

from collections import Counter
from typing import ClassVar

from ray.serve.request_router import PendingRequest, ReplicaID, RunningReplica

from prolepsis.ray.serve import PrefixAffinityRouter, request_of
from tests.simulation.replicas import RoundRobin

PREFIX, ROUND_ROBIN = "prefix", "round robin"


class BothRouters(PrefixAffinityRouter):
    """Its requests have salts that begin with the name of a router."""

    sent: ClassVar[dict[str, Counter[str]]] = {PREFIX: Counter(), ROUND_ROBIN: Counter()}
    """Prompt tokens sent to replicas in this process, by router."""

    def initialize_state(self) -> None:
        super().initialize_state()
        self._turns = RoundRobin()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        request = request_of(pending_request)
        if request is None or router_named_by(request.cache_salt) == PREFIX:
            return await super().choose_replicas(candidate_replicas, pending_request)
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        return [[by_name[name]] for name in self._turns.ranked(request, dict.fromkeys(by_name, 0))]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: object) -> None:
        super().on_request_routed(pending_request, replica_id, result)
        if (request := request_of(pending_request)) is not None:
            self.sent[router_named_by(request.cache_salt)][replica_id.unique_id] += len(request.prompt_token_ids)


def router_named_by(cache_salt: str) -> str:
    return cache_salt.split("/", maxsplit=1)[0]

"""The prompts of one HTTP request: let in together or not at all, charged once, each with its own place."""

from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.core.requests import GenerateRequest
from prolepsis.server.caller import Caller
from prolepsis.server.door.entry import Watched


@dataclass(frozen=True, slots=True)
class Member:
    """One prompt."""

    request: GenerateRequest
    watched: Watched
    key: bytes | None
    """Under which its answer may be stored."""

    @property
    def cost(self) -> int:
        """Tokens it may take: prompt and longest answers; none where the answer is stored."""
        request = self.request
        return 0 if self.watched.stored else len(request.prompt_token_ids) + request.n * request.params.max_tokens


@dataclass(frozen=True, slots=True)
class Party:
    """All prompts of one caller's HTTP request."""

    caller: Caller
    members: Sequence[Member]
    deadline_s: float | None

    @property
    def cost(self) -> int:
        return sum(member.cost for member in self.members)

    @property
    def num_used(self) -> int:
        return sum(member.watched.num_used(member.request) for member in self.members)

    @property
    def to_run(self) -> Sequence[Member]:
        """Those whose answers are not stored."""
        return [member for member in self.members if not member.watched.stored]

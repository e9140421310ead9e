"""An engine client over several engines: a request that loses its engine continues in another one.

Its consumer sees one stream with one terminal event; no token is lost or repeated.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import structlog
from prometheus_client import CollectorRegistry

from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.continuation import EngineLoss
from prolepsis.core.engine_client import EngineClient, EngineHealth, EngineInfo, HeadSwapped, InstalledHead
from prolepsis.core.errors import (
    DeadlineExceeded,
    EngineDead,
    EngineError,
    InvalidParameter,
    NotContinued,
    ProlepsisError,
    StepFailed,
    TokensOutOfPlace,
    UserError,
)
from prolepsis.core.events import Aborted, Event, Failed, Terminal
from prolepsis.core.messages import Abort, ApplyPlan, Control, InjectFault, LearnedAcceptance, SetCorpora, StopRun
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import ProposerMemory, RequestStats, TrafficClassCounts
from prolepsis.remote.members import ContinuationMetrics, Directory, FailoverSettings, Member, Members, differences
from prolepsis.remote.prefixes import ReplicaRouter
from prolepsis.remote.stream import KeptStream
from prolepsis.remote.views import summed_counts, summed_memory

log = structlog.get_logger(__name__)

_Loss = tuple[EngineLoss, RequestStats | None, str]
"""Why, the engine's figures of the request if it still gave them, and a description."""


class RemoteControls:
    """What all engines have in common, and later ones get too: plan, stopped runs, corpora, heads, learned rates."""

    def __init__(self) -> None:
        self.plan: SpecPlan | None = None
        self.stopped: dict[str, None] = {}  # runs of rollouts, in order
        self.corpora: dict[str, SetCorpora] = {}  # by owner
        self.learned: dict[str, LearnedAcceptance] = {}  # by proposer
        self.heads: dict[HeadProposerName, str] = {}
        """Draft heads by proposer; empty: the heads that the engines start with."""
        self.swapping = asyncio.Lock()
        """Held while heads change, so that an engine that joins meanwhile gets the new ones."""

    def note(self, control: ApplyPlan | StopRun | SetCorpora | LearnedAcceptance) -> None:
        match control:
            case ApplyPlan(plan):
                self.plan = plan
            case StopRun(run):
                self.stopped[run] = None
            case SetCorpora(owner, texts):
                self.corpora.pop(owner, None)
                if texts:
                    self.corpora[owner] = control
            case LearnedAcceptance(proposer):
                self.learned[proposer] = control

    def swapped(self, name: str, proposer: HeadProposerName, result: HeadSwapped) -> None:
        """Remember a head: by its version, as an alias may stand for another one later, or by its folder."""
        self.heads[proposer] = name if "/" in name else result.current or "none"

    async def bring_up_to_date(self, client: EngineClient) -> None:
        """Prepare an engine that has just started. A head that cannot be used any more costs drafts, not the engine."""
        async with self.swapping:
            for proposer, head in list(self.heads.items()):
                if head != (client.info.heads.get(proposer) or "none"):
                    try:
                        await client.swap_head(head, proposer)
                    except ProlepsisError as error:
                        log.warning("head_not_restored", proposer=proposer, head=head, error=str(error))
            if self.plan is not None:  # last: it may have changed while a head was loaded
                client.send(ApplyPlan(self.plan))
            for name in self.stopped:
                client.send(StopRun(name))
            for corpora in self.corpora.values():
                client.send(corpora)
            for learned in self.learned.values():
                client.send(learned)


class Engines:
    """An `EngineClient` that keeps each stream's tokens and, when an engine is lost, continues in another of its group.

    What changes engines (plan, stopped runs, corpora, draft heads) reaches all of them, also those that start later.
    Which engines there are is known from the start (`members`), or found out from a directory.
    """

    def __init__(
        self,
        members: Sequence[Member] = (),
        registry: CollectorRegistry | None = None,
        settings: FailoverSettings | None = None,
        *,
        directory: Directory | None = None,
        info: EngineInfo | None = None,
        router: ReplicaRouter | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`info`: facts about the engines of a directory; those of the first member otherwise."""
        self._settings = settings or FailoverSettings()
        self._metrics = ContinuationMetrics(registry or CollectorRegistry())
        self._controls = RemoteControls()
        self._clock = clock
        self._members = Members(
            members,
            info or members[0].engine.info,
            self._settings,
            self._metrics,
            self._controls.bring_up_to_date,
            directory=directory,
            router=router,
            clock=clock,
            sleep=sleep,
        )
        self._streams: dict[str, KeptStream] = {}
        self._watching: asyncio.Task[None] | None = None

    @property
    def info(self) -> EngineInfo:
        """Facts about the first engine that is there, else about the last that was."""
        clients = self._clients
        return clients[0].info if clients else self._members.info

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        if self._members.is_closing:
            raise EngineDead("the engines are closed")
        if request.request_id in self._streams:
            message = f"request_id {request.request_id!r} is in use; allowed: a new one"
            raise InvalidParameter(message, param="request_id")
        self._watch()
        stream = self._streams[request.request_id] = KeptStream(request, self._clock)
        event: Event | None = None
        try:
            while not isinstance(event, Terminal):
                member = await self._placed(stream)
                if not isinstance(member, Member):
                    yield (event := member)
                    continue
                async with self._asked(stream, member) as events:
                    while not isinstance(event, Terminal) and (event := await self._next(stream, events)) is not None:
                        yield event
        finally:
            del self._streams[request.request_id]

    def send(self, control: Control) -> None:
        """Send what all engines have in common to all of them, later ones too; others to the engine of their request.

        The next engine of a request, if this one is lost, knows nothing of a draft that was offered. A fault goes to
        the engines that are there; only one of them dies.
        """
        if isinstance(control, ApplyPlan | StopRun | SetCorpora | LearnedAcceptance):
            self._controls.note(control)
            for client in self._clients:
                client.send(control)
            return
        if isinstance(control, InjectFault):
            for client in self._clients[: 1 if control.fault == "die" else None]:
                client.send(control)
            return
        stream = self._streams.get(control.request_id)
        if stream is not None and isinstance(control, Abort):
            stream.is_aborted = True
            self._members.wake()
        if stream is not None and stream.client is not None:
            stream.client.send(control)

    async def heads(self) -> Sequence[InstalledHead]:
        return await self._clients_now[0].heads()

    async def swap_head(self, name: str, proposer: HeadProposerName = DRAFT_HEAD) -> HeadSwapped:
        """Swap it in all engines; one that refuses leaves all with the head before. One that is lost does not count."""
        async with self._controls.swapping:
            before, clients = self._controls.heads.get(proposer), self._clients_now
            work = [client.swap_head(name, proposer) for client in clients]
            results = await asyncio.gather(*work, return_exceptions=True)
            pairs = zip(clients, results, strict=True)
            swapped = [(client, result) for client, result in pairs if isinstance(result, HeadSwapped)]
            errors = [result for result in results if isinstance(result, BaseException)]
            refusal = next((error for error in errors if not isinstance(error, EngineDead)), None)
            if refusal is not None or not swapped:
                for client, result in swapped:
                    with suppress(ProlepsisError):  # what is raised is the reason
                        await client.swap_head(before or result.previous or "none", proposer)
                raise refusal or errors[0]
            first = swapped[0][1]
            self._controls.swapped(name, proposer, first)
            return first

    def health(self) -> EngineHealth:
        with suppress(RuntimeError):  # no event loop runs yet
            self._watch()  # a server that is not ready may get no request that would do so
        return self._members.health()

    def proposer_counts(self) -> Sequence[TrafficClassCounts]:
        """Return the sums over the engines that are there; those of a lost engine are gone."""
        return summed_counts([client.proposer_counts() for client in self._clients])

    def proposer_memory(self) -> Sequence[ProposerMemory]:
        return summed_memory([client.proposer_memory() for client in self._clients])

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        await self._members.close()

    def check(self) -> None:
        """Check the engines' health, and take requests from those that are gone and did not say so."""
        for member in self._members.check():
            client = member.engine
            self._members.lose(member, client, client.health().detail)
            now = asyncio.get_running_loop().time()
            for stream in member.streams:
                stream.is_interrupted = True
                if stream.scope is not None:
                    stream.scope.reschedule(now)

    @property
    def _clients(self) -> list[EngineClient]:
        return [member.client for member in self._members.all if member.client is not None]

    @property
    def _clients_now(self) -> list[EngineClient]:
        """At least one engine; raises `EngineDead` where none is there."""
        if not (clients := self._clients):
            raise EngineDead("no engine is there")
        return clients

    def _watch(self) -> None:
        """Look at the engines' health from now on, and for engines of the directory."""
        if self._watching is None and not self._members.is_closing:
            self._watching = asyncio.get_running_loop().create_task(self._keep_watching())
            self._members.follow()

    async def _keep_watching(self) -> None:
        while True:
            await asyncio.sleep(self._settings.check_s)
            self.check()

    async def _placed(self, stream: KeptStream) -> Member | Event:
        """Return the member that serves the stream next, or what ends it.

        Raises what refuses the request before any engine is lost for it.
        """
        try:
            member = await self._members.place(stream)
        except (NotContinued, DeadlineExceeded) as error:
            if not stream.losses:
                raise
            return self._not_continued(stream, error) if isinstance(error, NotContinued) else stream.failed(error)
        return member or stream.aborted("shutdown" if self._members.is_closing else "client")

    @asynccontextmanager
    async def _asked(self, stream: KeptStream, member: Member) -> AsyncIterator[AsyncIterator[Event]]:
        """Have a member's engine generate the rest of the stream; yield its events."""
        stream.member, stream.client = member, member.engine
        stream.differences = differences(stream, stream.client.info)
        events = stream.client.generate(stream.next_request(self._settings.outside_group))
        member.streams.add(stream)
        try:
            yield events
        finally:
            member.streams.discard(stream)
            stream.client = None
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    async def _next(self, stream: KeptStream, events: AsyncIterator[Event]) -> Event | None:
        """Return the next event for the consumer; None if the engine was lost and another is to continue."""
        member, client = stream.member, stream.client
        assert member is not None, "an engine serves it"
        assert client is not None, "likewise"
        try:
            outcome = await self._event_or_loss(stream, events)
        except UserError as error:
            if not stream.losses:
                raise
            if isinstance(error, InvalidParameter) and error.param == "request_id":  # not ended there so far
                await asyncio.sleep(self._settings.backoff_s)
                return self._after(stream, "engine_dead", None, str(error))
            return self._not_continued(stream, NotContinued(f"not taken up: {error}", reason="refused"))
        except EngineError as error:
            if not stream.losses:
                raise
            return stream.failed(error)
        if isinstance(outcome, Event):
            try:
                event, continued = stream.take(outcome, client.info)
            except TokensOutOfPlace as error:
                return stream.failed(error)
            if continued is not None:
                self._metrics.continued(continued, exact=not stream.differences)
            return event
        loss, stats, detail = outcome
        if loss != "step_failed":  # which leaves an engine to continue in
            self._members.lose(member, client, detail)
        return self._after(stream, loss, stats, detail)

    async def _event_or_loss(self, stream: KeptStream, events: AsyncIterator[Event]) -> Event | _Loss:
        """Wait for the engine's next event; return how it was lost if that comes first."""
        if stream.is_interrupted:
            return "not_alive", None, "the engine is not alive"
        try:
            async with asyncio.timeout(None) as stream.scope:
                event = await anext(events)
        except TimeoutError:
            if not stream.is_interrupted:
                raise
            return "not_alive", None, "the engine is not alive"
        except StopAsyncIteration:
            return "engine_dead", None, "the engine's events ended without a last one"
        except EngineDead as error:
            return "engine_dead", None, str(error)
        finally:
            stream.scope = None
        if isinstance(event, Failed) and isinstance(event.error, UserError) and stream.losses:
            raise event.error
        outcome: Event | _Loss = event
        match event:
            case Failed(error=EngineDead()):
                outcome = "engine_dead", event.stats, str(event.error)
            case Failed(error=StepFailed()):
                outcome = "step_failed", event.stats, str(event.error)
            case Aborted(reason="shutdown") if not self._members.is_closing:
                outcome = "shutdown", event.stats, "the engine was closed"
        return outcome

    def _after(self, stream: KeptStream, loss: EngineLoss, stats: RequestStats | None, detail: str) -> Event | None:
        """Return what ends the stream after a loss; None if it continues."""
        stream.lose(loss, stats)
        if stream.is_complete:
            return stream.finished()
        if stream.is_aborted:
            return stream.aborted("client")
        limits, losses = self._settings, stream.losses
        if stream.source.is_replay:
            return self._not_continued(stream, NotContinued(f"{detail}; a replay stays with it", reason="replay"))
        if len(losses) > limits.max_losses or losses.count("step_failed") > limits.max_failed_steps:
            message = f"{detail}; the request had lost {len(losses) - 1} engines before"
            return self._not_continued(stream, NotContinued(message, reason="too_often"))
        log.warning("request_loses_engine", request_id=stream.source.request_id, loss=loss, tokens=stream.num_tokens)
        return None

    def _not_continued(self, stream: KeptStream, error: NotContinued) -> Failed:
        self._metrics.refused(error.reason)
        log.error("request_not_continued", request_id=stream.source.request_id, reason=error.reason)
        return stream.failed(error)

"""Answers whose clients draft: what was sent of each, and what its client expects next."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from prolepsis.control.web.caller import Caller
from prolepsis.control.web.errors import RequestRefused
from prolepsis.core.client_draft import ClientDraft
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.messages import OfferDraft
from prolepsis.core.requests import GenerateRequest
from prolepsis.server.verify.refusal import Refusal


class VerifyStream:
    """One answer on its way to a client that drafts."""

    def __init__(
        self,
        request: GenerateRequest,
        caller: Caller,
        client: EngineClient,
        refusal: Callable[[], Refusal | None],
    ) -> None:
        """`refusal` says why no draft is taken now; None: they are."""
        self.request = request
        self.refusal = refusal
        self.num_drafts = 0
        """Drafts that arrived."""
        self.num_late = 0
        """Drafts that came after the answer had passed or left them."""
        self._client = client
        self._owner = (caller.tenant, caller.key_id)
        self._sent: list[int] = []
        self._draft: ClientDraft | None = None

    @property
    def id(self) -> str:
        return self.request.request_id

    def belongs_to(self, caller: Caller) -> bool:
        return self._owner == (caller.tenant, caller.key_id)

    def take(self, draft: ClientDraft) -> Refusal | None:
        """Offer a draft to the engine in place of the one before, or return why not; raises `InvalidParameter`."""
        draft.validate(self._client.info.vocab_size)
        self.num_drafts += 1
        if (refusal := self.refusal()) is not None:
            return refusal
        if draft.position > len(self._sent):
            return "ahead"
        if not draft.next_tokens(self._sent, 0):
            self.num_late += 1
            return "late"
        self._draft = draft
        self.offer()
        return None

    def offer(self) -> None:
        """Offer the last draft, unless what was sent has passed or left it."""
        if self._draft is not None and self._expected:
            self._client.send(OfferDraft(self.id, self._draft))

    def send(self, token_ids: Sequence[int]) -> tuple[int, bool]:
        """Take in the next tokens; return how many of them the draft had, and whether the next one corrects it."""
        expected = self._expected
        self._sent += token_ids
        num_right = 0
        for token, drafted in zip(token_ids, expected, strict=False):
            if token != drafted:
                return num_right, True
            num_right += 1
        return num_right, False

    @property
    def _expected(self) -> tuple[int, ...]:
        return () if self._draft is None else self._draft.next_tokens(self._sent, 0)


class VerifyStreams:
    """The streams that are open now, by id. Belongs to one event loop."""

    def __init__(self) -> None:
        self._open: dict[str, VerifyStream] = {}

    @contextmanager
    def opened(self, stream: VerifyStream) -> Iterator[None]:
        """Let drafts for a stream in while the block runs."""
        self._open[stream.id] = stream
        try:
            yield
        finally:
            del self._open[stream.id]

    def find(self, stream_id: str, caller: Caller) -> VerifyStream:
        """Return an open stream of the caller's key; raises `RequestRefused` (404)."""
        stream = self._open.get(stream_id)
        if stream is None or not stream.belongs_to(caller):
            message = f"No stream {stream_id[:128]!r} of this key is open on this server"
            raise RequestRefused(message, code="stream_not_found", status=404, param="id")
        return stream

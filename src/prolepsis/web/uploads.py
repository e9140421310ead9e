"""Bodies on their way in: read up to a size, and bounded in what those of one tenant take together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from prolepsis.web.refusals import too_large, too_many_uploads

BODIES_OF_TENANT = 64
"""How many bodies of the largest size one tenant may have here before they are parsed."""

_BYTES_WITHOUT_PROMPT = 256 * 2**10
_BYTES_OF_TOKEN = 16


def body_limit(max_model_len: int) -> int:
    """Return the size of the largest body where none is configured: room for a full context, a schema and biases.

    Its JSON is read without a break, which holds up the tokens of all tenants.
    """
    return _BYTES_WITHOUT_PROMPT + _BYTES_OF_TOKEN * max_model_len


class Uploads:
    """Counts the bytes of bodies that are here and not parsed yet, by tenant. Belongs to one event loop."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        """Of one body."""
        self._bytes_of: dict[str, int] = {}

    @asynccontextmanager
    async def read(self, request: Request, tenant: str) -> AsyncIterator[bytes]:
        """Read the body and hold it until it is parsed; raises `Refused` for one too large, and for too many."""
        chunks: list[bytes] = []
        size = 0
        try:
            async for chunk in request.stream():
                size += len(chunk)
                self._hold(tenant, len(chunk))
                if size > self.most_bytes:
                    raise too_large("body", f"{self.most_bytes} bytes")
                self._check_room(tenant)
                chunks.append(chunk)
            yield b"".join(chunks)
        finally:
            self._hold(tenant, -size)

    def _hold(self, tenant: str, num_bytes: int) -> None:
        held = self._bytes_of.get(tenant, 0) + num_bytes
        if held:
            self._bytes_of[tenant] = held
        else:
            self._bytes_of.pop(tenant, None)

    def _check_room(self, tenant: str) -> None:
        limit = BODIES_OF_TENANT * self.most_bytes
        if self._bytes_of.get(tenant, 0) > limit:
            raise too_many_uploads(limit)

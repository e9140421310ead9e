"""The static files of the console: vendored libraries, its own style and scripts; addresses hold the content's hash."""

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

from starlette.responses import Response

_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_FOREVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    content: bytes
    media_type: str
    version: str
    """The beginning of the content's SHA-256."""


class Assets:
    """Holds all files in memory: they are few and small."""

    def __init__(self) -> None:
        folder = files(__package__) / "static"
        self._all = {
            file.name: Asset(content := file.read_bytes(), kind, sha256(content).hexdigest()[:12])
            for file in folder.iterdir()
            if (kind := next((kind for end, kind in _TYPES.items() if file.name.endswith(end)), None))
        }

    def url(self, name: str) -> str:
        return f"/console/static/{name}?v={self._all[name].version}"

    def response(self, name: str) -> Response | None:
        """Return a file, None for an unknown name."""
        found = self._all.get(name)
        if found is None:
            return None
        return Response(found.content, media_type=found.media_type, headers={"cache-control": _FOREVER})

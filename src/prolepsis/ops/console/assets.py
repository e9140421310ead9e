"""The static files of the console: vendored libraries, its own style and scripts; addresses hold the content's hash."""

from hashlib import sha256
from importlib.resources import files

from starlette.responses import Response

_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_FOREVER = "public, max-age=31536000, immutable"


class Assets:
    """Holds all files in memory: they are few and small."""

    def __init__(self) -> None:
        self._content = {
            file.name: file.read_bytes()
            for file in (files(__package__) / "static").iterdir()
            if file.name.endswith(tuple(_TYPES))
        }

    def url(self, name: str) -> str:
        return f"/console/static/{name}?v={sha256(self._content[name]).hexdigest()[:12]}"

    def response(self, name: str) -> Response | None:
        """Return a file, None for an unknown name."""
        if name not in self._content:
            return None
        kind = _TYPES[name[name.rindex(".") :]]
        return Response(self._content[name], media_type=kind, headers={"cache-control": _FOREVER})

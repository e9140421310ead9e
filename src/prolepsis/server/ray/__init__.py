"""Engine replicas on Ray Serve, and the application `prolepsis.server.ray:app`; two modules import Ray, an extra."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def app(arguments: dict[str, Any]) -> "Application":
    """Return front ends and engines as one application, for `serve run prolepsis.server.ray:app` (`Arguments`)."""
    from prolepsis.server.ray.front_end import application_of

    return application_of(arguments)

"""Engine replicas on Ray Serve, and the application `prolepsis.adapters.ray:app`; two modules import Ray, an extra."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def app(arguments: dict[str, Any]) -> "Application":
    """Return front ends and engines as one application, for `serve run prolepsis.adapters.ray:app` (`Arguments`)."""
    from prolepsis.adapters.ray.front_end import application_of

    return application_of(arguments)

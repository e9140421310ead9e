"""Engine replicas on Ray Serve, and the application `prolepsis.ray:app`. Ray is an extra; two modules import it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def app(arguments: dict[str, Any]) -> "Application":
    """Return front ends and engines as one application: `serve run prolepsis.ray:app` (see `arguments.Arguments`)."""
    from prolepsis.ray.front_end import application_of

    return application_of(arguments)

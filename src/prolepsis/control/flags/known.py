"""The flags that are asked, with what holds where a flag says nothing."""

from collections.abc import Mapping

ENABLED = "speculation.enabled"
"""Boolean; false: the request is decoded plainly, whatever policy and caller say."""
KILL = "speculation.kill"
"""Boolean, asked without a request; true: nothing is speculated anywhere."""
DEFAULTS: Mapping[str, bool] = {ENABLED: True, KILL: False}

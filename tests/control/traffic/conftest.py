from tests.ops.console.conftest import browse, few_logs, keyed_scene, open_scene

__all__ = ["browse", "few_logs", "keyed_scene", "open_scene"]

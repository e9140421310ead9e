from tests.ops.console.conftest import browse, few_logs, open_scene

__all__ = ["browse", "few_logs", "open_scene"]

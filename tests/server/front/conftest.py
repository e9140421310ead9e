from tests.server.admission.conftest import keyed_app

__all__ = ["keyed_app"]

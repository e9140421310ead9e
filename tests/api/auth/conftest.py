from tests.api.admission.conftest import keyed_app

__all__ = ["keyed_app"]

from tests.api.admission.conftest import house

__all__ = ["house"]

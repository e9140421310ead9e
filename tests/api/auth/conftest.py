from tests.api.admission.conftest import house as house

"""What prepares the requests for one model, and answers them."""

from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.control.web.feature import Feature
from prolepsis.control.web.intake import Intake
from prolepsis.core.config import ServerConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.server.admission.controller import AdmissionController
from prolepsis.server.output.pipeline import OutputPolicies
from prolepsis.server.speculation_control import SpeculationControl


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    config: ServerConfig
    client: EngineClient
    tokenizer: Tokenizer
    intake: Intake
    admission: AdmissionController
    speculation: SpeculationControl
    output: OutputPolicies
    features: Sequence[Feature]

"""Names of spans and their attributes: the only place that knows them, as OpenTelemetry renames its own.

`gen_ai.*`, `http.*` and `error.type` come from OpenTelemetry's package of conventions; those for generative AI are in
development. `gen_ai.latency.*` are the names of vLLM and SGLang. For speculation there are no conventions: those names
are `prolepsis.*`.
"""

from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.semconv.attributes import error_attributes, http_attributes

# Names of spans. Those of requests are `{operation} {model}`, those of other HTTP requests `{method} {route}`.
SPAN_PROMPT = "prompt"
SPAN_QUEUE = "queue"
SPAN_PREFILL = "prefill"
SPAN_DECODE = "decode"
SPAN_ROUND = "round"
SPAN_LATER_ROUNDS = "later rounds"
SPAN_REPLAY = "replay"

OPERATION = gen_ai.GEN_AI_OPERATION_NAME
PROVIDER = gen_ai.GEN_AI_PROVIDER_NAME
OUTPUT_TYPE = gen_ai.GEN_AI_OUTPUT_TYPE
REQUEST_MODEL = gen_ai.GEN_AI_REQUEST_MODEL
REQUEST_STREAM = gen_ai.GEN_AI_REQUEST_STREAM
REQUEST_MAX_TOKENS = gen_ai.GEN_AI_REQUEST_MAX_TOKENS
REQUEST_TEMPERATURE = gen_ai.GEN_AI_REQUEST_TEMPERATURE
REQUEST_TOP_P = gen_ai.GEN_AI_REQUEST_TOP_P
REQUEST_TOP_K = gen_ai.GEN_AI_REQUEST_TOP_K
REQUEST_FREQUENCY_PENALTY = gen_ai.GEN_AI_REQUEST_FREQUENCY_PENALTY
REQUEST_PRESENCE_PENALTY = gen_ai.GEN_AI_REQUEST_PRESENCE_PENALTY
REQUEST_SEED = gen_ai.GEN_AI_REQUEST_SEED
REQUEST_CHOICES = gen_ai.GEN_AI_REQUEST_CHOICE_COUNT
RESPONSE_ID = gen_ai.GEN_AI_RESPONSE_ID
RESPONSE_MODEL = gen_ai.GEN_AI_RESPONSE_MODEL
RESPONSE_FINISH_REASONS = gen_ai.GEN_AI_RESPONSE_FINISH_REASONS
USAGE_INPUT = gen_ai.GEN_AI_USAGE_INPUT_TOKENS
USAGE_CACHED = gen_ai.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS
USAGE_OUTPUT = gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS

LATENCY_QUEUE = "gen_ai.latency.time_in_queue"
LATENCY_PREFILL = "gen_ai.latency.time_in_model_prefill"
LATENCY_DECODE = "gen_ai.latency.time_in_model_decode"
LATENCY_INFERENCE = "gen_ai.latency.time_in_model_inference"
LATENCY_FIRST = "gen_ai.latency.time_to_first_token"
LATENCY_TOTAL = "gen_ai.latency.e2e"

STAGE_RECEIVE = "prolepsis.stage.receive"
STAGE_QUEUE = "prolepsis.stage.queue"
STAGE_PREFILL = "prolepsis.stage.prefill"
STAGE_DECODE = "prolepsis.stage.decode"
STAGE_OTHERS = "prolepsis.stage.others"
STAGE_CLIENT = "prolepsis.stage.client"
STAGE_SERVER = "prolepsis.stage.server"

HTTP_METHOD = http_attributes.HTTP_REQUEST_METHOD
HTTP_ROUTE = http_attributes.HTTP_ROUTE
HTTP_STATUS = http_attributes.HTTP_RESPONSE_STATUS_CODE
ERROR_TYPE = error_attributes.ERROR_TYPE

KEPT = "prolepsis.trace.kept"
END = "prolepsis.end"
REQUEST_ID = "prolepsis.request.id"
TENANT = "prolepsis.tenant.hash"
TIER = "prolepsis.tier"
TRAFFIC_CLASS = "prolepsis.traffic_class"
POLICY_RULE = "prolepsis.policy.rule"
POLICY_VERSION = "prolepsis.policy.version"
ROLLOUT_RUN = "prolepsis.rollout.run"
ROLLOUT_ARM = "prolepsis.rollout.arm"
MODE_REQUESTED = "prolepsis.mode.requested"
MODE = "prolepsis.mode.effective"
MODE_REASON = "prolepsis.mode.reason"
PLAN_VERSION = "prolepsis.plan.version"
FALLBACK = "prolepsis.fallback.reasons"
ANSWER = "prolepsis.answer"
ADMISSION_WAIT = "prolepsis.queue.admission_s"
PREEMPTIONS = "prolepsis.preemptions"
PASSES = "prolepsis.target_passes"
PLAIN_REASONS = "prolepsis.plain.reasons"
PLAIN_STEPS = "prolepsis.plain.steps"
ROUNDS = "prolepsis.speculation.rounds"
DRAFTED = "prolepsis.speculation.drafted_tokens"
ACCEPTED = "prolepsis.speculation.accepted_tokens"
EMITTED = "prolepsis.speculation.emitted_tokens"
NODES = "prolepsis.speculation.verified_nodes"
PROPOSAL_ID = "prolepsis.speculation.proposal.id"
PROPOSER = "prolepsis.speculation.proposer.name"
PROPOSER_VERSION = "prolepsis.speculation.proposer.version"
SAMPLE = "prolepsis.speculation.sample"
OUTCOME = "prolepsis.speculation.outcome"
PROPOSE_S = "prolepsis.speculation.propose_s"
FORWARD_S = "prolepsis.speculation.forward_s"
VERIFY_S = "prolepsis.speculation.verify_s"
REPLAY_OUTCOME = "prolepsis.replay.outcome"
REPLAY_POSITION = "prolepsis.replay.position"

# Of the resource, with `service.*` and what OTEL_RESOURCE_ATTRIBUTES adds.
FINGERPRINT = "prolepsis.fingerprint"
EXACTNESS = "prolepsis.exactness"

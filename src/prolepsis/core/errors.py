"""Every error that Prolepsis raises on purpose.

ProlepsisError
├── UserError                  the caller's fault: says what was given and what is allowed
│   ├── InvalidParameter       a request parameter outside its range, or a combination that cannot be served
│   ├── InvalidGrammar         a schema, regex, choice or grammar that cannot be compiled
│   ├── ContextTooLong         prompt and answer do not fit the model's context or the page pool
│   ├── OtherExactGroup        an answer that was begun by an engine whose tokens may differ: names what differs
│   ├── ModelNotFound          a name that no served model has
│   ├── RolloutNotFound        an id of no rollout of the policy in use
│   ├── RolloutConflict        what is asked of a rollout cannot be done now
│   └── ConfigError            a configuration file, flag or environment variable
├── ModelError                 a model that cannot be used
│   ├── ModelLoadError         missing, corrupt or unsupported files
│   ├── FetchError             a download that failed: hub unreachable, checksum, disk full
│   └── VocabularyMismatch     draft and target models do not share a tokenizer
├── MemoryPlanError            the stated memory budget is too small: says how much is needed
├── StoreError                 the store could not do what was asked
│   ├── StoreUnavailable       the database is gone, locked or full: what was asked is not known to be written
│   └── StoreConflict          it was changed meanwhile: says what is there now
├── DeliveryFailed             another system did not take audit entries; they are to be delivered again
└── EngineError                the engine could not finish a request it had accepted
    ├── DeadlineExceeded       the request's deadline passed
    │   └── ClientDeadlineExceeded   the client had set it, and the server was at work
    ├── TokensOutOfPlace       a token of the answer would be repeated or skipped on its way to the client
    ├── GrammarFailed          a grammar that compiled gave up while the answer was matched
    │   └── AnswerBroken       a whole answer breaks what its schema asks for beyond its grammar
    ├── NotFinite              the model computed no number for a token: its weights are damaged, or values overflowed
    ├── StepFailed             a step of the engine raised; the engine lives
    ├── UpstreamUnavailable    no upstream engine serves it, or continues with it
    ├── UpstreamInvalid        the upstream engine's answer is not what its API says
    └── EngineDead             the engine ended; nothing is accepted any more
        └── NotContinued       a request lost its engine, and no other went on with it: says why
"""

from typing import Self

from prolepsis.core.continuation import NotContinuedReason


class ProlepsisError(Exception):
    """Base of the tree; `code` is a stable snake_case name for programs."""

    code = "internal_error"


class UserError(ProlepsisError):
    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidParameter(UserError):
    code = "invalid_value"


class InvalidGrammar(UserError):
    code = "invalid_grammar"

    def __init__(self, message: str, *, param: str | None = "grammar") -> None:
        super().__init__(message, param=param)


class ContextTooLong(UserError):
    code = "context_length_exceeded"

    @classmethod
    def of(cls, max_model_len: int, given: str, *, param: str) -> Self:
        """Say it in OpenAI's words, by which clients know it; some see no more of an error than its message."""
        message = f"This model's maximum context length is {max_model_len} tokens; given: {given} ({cls.code})."
        return cls(message, param=param)


class OtherExactGroup(UserError):
    code = "other_exact_group"


class ModelNotFound(UserError):
    code = "model_not_found"


class RolloutNotFound(UserError):
    code = "rollout_not_found"


class RolloutConflict(UserError):
    code = "rollout_conflict"


class ConfigError(UserError):
    code = "invalid_config"


class ModelError(ProlepsisError):
    code = "model_error"


class ModelLoadError(ModelError):
    code = "model_load_error"


class FetchError(ModelError):
    code = "fetch_error"


class VocabularyMismatch(ModelError):
    code = "vocabulary_mismatch"


class MemoryPlanError(ProlepsisError):
    code = "insufficient_memory"


class StoreError(ProlepsisError):
    code = "store_error"


class StoreUnavailable(StoreError):
    code = "store_unavailable"


class StoreConflict(StoreError):
    code = "store_conflict"


class DeliveryFailed(ProlepsisError):
    code = "delivery_failed"


class EngineError(ProlepsisError):
    code = "engine_error"


class DeadlineExceeded(EngineError):
    code = "deadline_exceeded"

    @classmethod
    def unfinished(cls, limit_s: float, reason: str = "") -> Self:
        """Return the error of a request that did not finish in `limit_s` seconds; `reason` continues the sentence."""
        return cls(f"not finished in {limit_s:.3f} s{reason}")


class ClientDeadlineExceeded(DeadlineExceeded):
    """Its code is that of `DeadlineExceeded`: the client sees no difference, and the service did not fail."""


class TokensOutOfPlace(EngineError):
    code = "tokens_out_of_place"


class GrammarFailed(EngineError):
    """A grammar's own fault, so that its client gets status 400."""

    code = "grammar_failed"
    param: str | None = None


class AnswerBroken(GrammarFailed):
    """Neither the request's fault nor the server's: another answer might do. Some see no more than the message."""

    code = "answer_breaks_schema"

    @classmethod
    def of(cls, fault: str, whose: str = "the") -> Self:
        return cls(f"{whose} answer breaks its schema: {fault} ({cls.code})")


class NotFinite(EngineError):
    code = "not_finite"


class StepFailed(EngineError):
    """Its code is that of `EngineError`."""


class UpstreamUnavailable(EngineError):
    code = "upstream_unavailable"


class UpstreamInvalid(EngineError):
    code = "upstream_invalid"


class EngineDead(EngineError):
    code = "engine_dead"


class NotContinued(EngineDead):
    code = "not_continued"

    def __init__(self, message: str, *, reason: NotContinuedReason = "no_engine") -> None:
        super().__init__(message)
        self.reason = reason

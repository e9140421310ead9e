"""A rule's terms of learning: who agreed, what is kept, when a head is trained, and what it must show."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from prolepsis.control.policy.conditions import AnyWindow
from prolepsis.control.policy.rollout_terms import Stages
from prolepsis.core.validation import Number, Part, one_or_more, spelt

TenantName = Annotated[str, spelt(r"[^*]*", "the whole name of a tenant, without *")]
TenantNames = Annotated[tuple[TenantName, ...], BeforeValidator(one_or_more)]


class WhenTerms(Part):
    """What makes a run due: any of `drift`, `new_tokens` and `days`, within `time`. By hand it always is."""

    drift: bool = True
    new_tokens: Annotated[int, Field(ge=1)] | None = 200_000
    days: Annotated[Number, Field(gt=0)] | None = 7.0
    time: AnyWindow | None = None


class LearningTerms(Part):
    """Learning from a rule's requests, of which each must agree as well."""

    tenants: Annotated[TenantNames, Field(min_length=1)]
    """Those who agreed, by name; "" is the one of development without keys."""
    serves: Literal["tenant", "all"] = "tenant"
    """tenant: what is learnt serves the one tenant that it was learnt from; all: all that the rule matches."""
    min_tenants: Annotated[int, Field(ge=2)] = 5  # with `serves: all`, in each data set; none has more than half of it
    days: Annotated[Number, Field(gt=0)] = 30.0  # for which examples are kept
    megabytes: Annotated[Number, Field(gt=0)] = 64.0  # of examples, at most
    max_prompt_tokens: Annotated[int, Field(ge=1)] = 2048  # longer ones are not kept: a run would read them again
    when: WhenTerms = WhenTerms()
    run: Literal["here", "elsewhere", "by_hand"] = "here"
    """here: a server starts runs; elsewhere: `learning run` waits for them, on any machine with the store."""
    processor_s: Annotated[Number, Field(gt=0)] = 14_400.0  # of one run, at most
    share: Annotated[Number, Field(gt=0, le=1)] = 0.5  # of the machine's cores, while it is idle
    gain: Annotated[Number, Field(gt=0, lt=1)] = 0.03  # by how much a head must surely draft better, offline and live
    loss: Annotated[Number, Field(gt=0, lt=1)] = 0.02  # how much worse it may be on the base text
    stages: Stages = (10.0, 50.0)
    on_forget: Literal["now", "next"] = "now"
    """now: a head that learnt from a tenant that is forgotten leaves service at once; next: at the next promotion."""

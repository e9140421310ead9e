"""The facts of a request that policies may use; none is guessed but a language, where a policy asks for that."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from types import MappingProxyType

LANGUAGE = "language"
"""Key of a request's `metadata` that says the language of the answer; it counts before `Accept-Language`."""
DOMAIN, BUDGET = "domain", "budget"
"""Keys of a request's `metadata` that declare what the answer is about, and how much it may cost."""
TAGS, TAGS_HEADER = "tags", "x-litellm-tags"
"""Key of a request's `metadata`, and header, that name with commas to whom its cost belongs."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """One request as policies see it, with the API's defaults."""

    route: str = ""  # path of the endpoint, such as /v1/chat/completions
    model: str = ""
    tenant: str = ""  # empty in development mode
    tier: str = ""
    key: str = ""  # public part of the API key
    roles: frozenset[str] = frozenset()  # roles the key lists
    budget: str | None = None
    """Budget of the key, else as the request declares it; None where neither does."""
    tools: bool = False  # the answer may call tools
    tool_choice: str = "none"  # none, auto, required, named (one function) or allowed (a list of them)
    structured_output: str = "none"  # none, json_object, json_schema, regex, choice or grammar
    stream: bool = False
    priority: int = 0  # as the request states it; lower runs first
    n: int = 1
    prompt_tokens: int | None = None  # tokens of the longest prompt; None: not known, so no range holds
    max_tokens: float = math.inf  # longest answer asked for; infinite: as long as fits
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    domain: str | None = None  # domain of the answer, as the request declares it; None if it does not
    language: str | None = None  # language tag (BCP 47) as the request states it, or as detected; None: not known
    language_detected: bool = False  # `language` is a guess by the prompt's text
    headers: Mapping[str, str] = field(default_factory=dict)  # by name in lower case
    flag: frozenset[str] = frozenset()  # feature flags that a policy names and that are true for the request
    time: datetime = EPOCH  # when the request arrived, with a time zone
    targeting_key: str | None = None  # key by which shares of requests are drawn; None: not drawn


def stated_language(metadata: Mapping[str, str] | None, headers: Mapping[str, str]) -> str | None:
    """Return the language a request states: `metadata.language`, else the preferred one of `Accept-Language`.

    `headers` are by name in lower case. The text itself is not looked at.
    """
    return declared(metadata, LANGUAGE) or _preferred(headers.get("accept-language", ""))


def stated_tags(metadata: Mapping[str, str] | None, headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the tags a request states, each once: `metadata.tags`, else those of the header."""
    given = declared(metadata, TAGS) or headers.get(TAGS_HEADER, "")
    return tuple(dict.fromkeys(tag for part in given.split(",") if (tag := part.strip())))


def declared(metadata: Mapping[str, str] | None, name: str) -> str | None:
    """Return what a request's metadata declares under `name`, None without it."""
    return (metadata or {}).get(name, "").strip() or None


def _preferred(header: str) -> str | None:
    """Return the tag of highest weight (RFC 9110, section 12.5.4), the first of several; * states none."""
    best, best_weight = None, 0.0
    for part in header.split(","):
        tag, _, parameter = part.partition(";")
        weight = _weight(parameter)
        if tag.strip() not in ("", "*") and weight > best_weight:
            best, best_weight = tag.strip(), weight
    return best


def _weight(parameter: str) -> float:
    name, _, value = parameter.partition("=")
    if name.strip().lower() != "q":
        return 1.0
    try:
        weight = float(value)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0


_NAME = "[A-Za-z0-9._-]{1,64}"
TRAFFIC_CLASS = (
    "^[a-z-]{1,32}/[a-z-]{1,32}/(free|structured)/(short|medium|long)"
    f"(/{_NAME}(/domain={_NAME})?(/language={_NAME})?)?$"
)
"""What names of traffic classes look like."""
PARTS = ("domain", "language")
UNLISTED, UNSTATED = "other", "unknown"
"""A domain or language in the name of a class: one that the policy does not list, and none."""
MAX_CLASS_RULES = 16
"""Rules of a policy, its first ones, whose requests are classes of their own; other rules are `OTHER_RULES`."""
OTHER_RULES = "other"
NO_RULE = "default"
"""The rule of classes without one: no policy is in use, or none of its rules matched."""
SHORT, MEDIUM = 512, 4096  # most tokens of such a prompt


def traffic_class_of(
    facts: RequestFacts, rule: str | None = None, parts: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return the traffic class of a request: ROUTE/TIER/FORM/CONTEXT, such as chat-completions/standard/free/short.

    FORM is `free` or `structured` (tools count as structured), CONTEXT is `short` up to 512 prompt tokens, `medium` up
    to 4096, else `long`. `rule`, of the policy, follows as a fifth part if one matched: rules separate what tenants,
    headers and flags do. `parts` come last, each as NAME=VALUE: domain and language, where the policy lists some. There
    are few classes on purpose: each has evidence of its own to gather.
    """
    route = facts.route.removeprefix("/v1/").strip("/").replace("/", "-") or "none"
    form = "structured" if facts.tools or facts.structured_output != "none" else "free"
    name = f"{route}/{facts.tier or 'none'}/{form}/{_context(facts.prompt_tokens or 0)}"
    if rule is None and not parts:
        return name
    return "/".join([name, rule or NO_RULE, *(f"{part}={value}" for part, value in parts.items())])


def rule_of_class(traffic_class: str) -> str:
    """Return the rule of a traffic class; `NO_RULE` if it has none."""
    return (*traffic_class.split("/", 5), *[""] * 4)[4] or NO_RULE


def parts_of_class(traffic_class: str) -> dict[str, str]:
    """Return domain and language of a traffic class, as far as it has them."""
    return {part: value for part, _, value in (text.partition("=") for text in traffic_class.split("/")[5:])}


def wider_classes(traffic_class: str) -> Iterator[str]:
    """Yield the traffic classes that this one belongs to, itself too: those of all rules, domains and languages."""
    parts = traffic_class.split("/")
    yield from ("/".join(parts[:number]) for number in range(min(4, len(parts)), len(parts) + 1))


def _context(num_tokens: int) -> str:
    if num_tokens <= SHORT:
        return "short"
    return "medium" if num_tokens <= MEDIUM else "long"


_SHOWABLE = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class FlagDecision:
    """OpenFeature's evaluation details."""

    key: str
    value: bool
    variant: str | None
    reason: str  # STATIC, TARGETING_MATCH, SPLIT, DEFAULT, DISABLED, CACHED, STALE, UNKNOWN or ERROR
    version: str = ""  # version of the set of flags, if the provider has one
    error: str = ""  # openFeature's error code, such as FLAG_NOT_FOUND; `value` is then the default

    @property
    def shown(self) -> str:
        """Return KEY:VARIANT:REASON for a header; the value replaces a variant that a header cannot carry."""
        variant = self.variant if self.variant and _SHOWABLE.fullmatch(self.variant) else str(self.value).lower()
        return f"{self.key}:{variant}:{self.reason}"


def position(salt: str, key: str) -> float:
    """Return where `key` lies, in [0, 100): evenly spread over keys, and independent for each `salt`.

    A share of p percent are the keys below p, so a share that grows keeps those it had.
    """
    digest = blake2b(key.encode(), salt=blake2b(salt.encode(), digest_size=16).digest(), digest_size=8)
    return 100.0 * (int.from_bytes(digest.digest()) >> 11) / 2.0**53

"""What a server learns from, and the heads that come of it: values that engine, control and training share."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Literal

from prolepsis.core.files import data_directory
from prolepsis.core.json_value import JsonValue

Phase = Literal["due", "training", "trial", "settling", "ended"]
Outcome = Literal["promoted", "rejected", "rolled_back", "failed", "forgotten", "stopped"]
Trigger = Literal["hand", "drift", "new_tokens", "age", "target"]
_MOST_REPORTS = 20


def run_folders(store: str) -> Path:
    """Return where this machine's runs of a store (`Database.name`) have a folder each, called by their ids."""
    return data_directory() / "learning" / f"runs-{sha256(store.encode()).hexdigest()[:8]}"


def report_folder(run_id: str) -> Path:
    """Return the folder of what a run printed and reports, made if it is missing; those of other runs go in time."""
    folder = data_directory() / "learning" / "reports" / run_id
    folder.mkdir(parents=True, exist_ok=True)
    folder.touch()  # so that it is among the newest
    for old in sorted(folder.parent.iterdir(), key=lambda each: each.stat().st_mtime)[:-_MOST_REPORTS]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def short_id(example_id: str) -> str:
    """Return the digits by which a manifest names an example."""
    return example_id[:16]


@lru_cache(maxsize=4096)
def tenant_digest(tenant: str) -> str:
    """Return 16 hexadecimal digits that stand for a tenant in the files of a head; development's "" has them too."""
    return sha256(tenant.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example(JsonValue):
    """A request that may be learnt from, as token ids: the only text of it that is kept."""

    example_id: str  # 32 hexadecimal digits, of the engine's id of the request
    tokenizer: str  # fingerprint: servers of other models may share the store
    rule: str
    tenant: str
    traffic_class: str
    at: float  # Unix time at which it began
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    greedy: bool
    tokens_a_pass: float | None = None  # None: it was decoded plainly
    by_chance: bool = False  # it was drawn, whatever its drafts showed; others are those that drafts fit worse
    was_redacted: bool = False  # the prompt has marks in place of what was found, read again by the tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetManifest(JsonValue):
    """What one run learnt from. Its key is the first 16 digits of its `digest_of`."""

    rule: str
    made_at: float
    first_at: float
    last_at: float
    target: str  # identity of the target's weights
    tokenizer: str
    filters: Mapping[str, object]  # the rule's terms of learning as they were in force
    examples: Mapping[str, tuple[str, ...]]  # by tenant digest: short ids
    held_out_from: float  # examples from here on are never trained on in this run
    base: str  # SHA-256 of the base text


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLineage(JsonValue):
    """What a learnt head came of, and what became of it. Its key is NAME@VERSION."""

    rule: str
    parent: str
    manifests: tuple[str, ...]  # keys of all that made it, its parent's included
    serves: tuple[str, ...]  # digests of the tenants that it drafts for; empty: for everybody
    sha256: str
    made_at: float
    evaluation: Mapping[str, object] = field(default_factory=dict)
    promoted_at: float = 0.0  # 0: never
    retired: str = ""  # why it may not draft any more; empty: it may
    touched: str = ""  # whose text in it was forgotten, where the policy lets it serve until the next promotion


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRun(JsonValue):
    """The run that is under way, or was last: there is one at a time over all rules."""

    version: int = 0  # counts changes, so that of two writers one wins
    run_id: str = ""
    rule: str = ""
    trigger: Trigger = "hand"
    why: str = ""
    model: str = ""
    target: str = ""  # servers of other targets leave it alone
    terms: Mapping[str, object] = field(default_factory=dict)  # so that the job needs no policy
    phase: Phase = "ended"
    outcome: Outcome | None = None
    reason: str = ""
    holder: str = ""
    leased_until: float = 0.0
    paused_until: float = 0.0
    parent: str = ""
    head: str = ""
    processor_s: float = 0.0
    progress: float = 0.0
    report: str = ""  # machine and folder with the figures and plots of its training
    since: float = 0.0

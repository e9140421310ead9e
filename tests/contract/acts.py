"""The acts of the audit log, by area."""

ACTS = frozenset(
    f"{area}.{act}"
    for area, acts in {
        "audit": "act_unreadable head_invalid head_unsigned",
        "batch": "cancelled completed created expired",
        "breaker": "closed forced_closed forced_open half_open metrics_only open",
        "console": "signed_in signed_out",
        "corpus": "added removed",
        "drift": "benefit_gone cliff divergence drift recovered reset",
        "drill": "fault run",
        "eligibility": "gained lost",
        "exact": "failed passed",
        "file": "deleted",
        "flags": "loaded reloaded removed set",
        "head": "alias_removed alias_set retired swapped tried",
        "incident": "snapshot",
        "key": "created revoked",
        "keys": "loaded reloaded",
        "kill": "off on",
        "learning": "due exported failed forgotten promoted rejected rolled_back started stopped trial",
        "policy": "applied loaded reloaded rolled_back",
        "prices": "loaded reloaded",
        "recording": "downloaded started stopped",
        "records": "pruned",
        "rehearsal": "checked",
        "replay": "near_tie structural",
        "request": "exported replayed served",
        "response": "cancelled deleted",
        "rollout": "completed gate_reached held promoted resumed rolled_back silence_expired silenced started set_back",
        "server": "started stopped",
        "store": "upgraded",
        "tenant": "forgotten",
        "texts": "erased",
        "verdict": "changed",
    }.items()
    for act in acts.split()
)
"""All actions. Readers of the log rely on these names."""

"""What keys, tokens and passwords look like.

Shapes with a prefix of their own, as their issuers publish them, and what stands behind a name that says secret.
Entropy is not looked at: digests and ids, of which audit entries are full, have as much of it as keys.
"""

import re

MARK = "[SECRET]"

SHAPES = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    r"\bplps_[0-9a-f]{12}_[A-Za-z0-9_-]{43}",  # our own
    r"\bsk-[A-Za-z0-9_-]{20,}",  # OpenAI, Anthropic and those who do as they do
    r"\b(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}",  # Stripe
    r"\bwhsec_[A-Za-z0-9+/=]{24,}",
    r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b",  # AWS
    r"\bAIza[A-Za-z0-9_-]{35}",  # Google
    r"\bya29\.[A-Za-z0-9_-]{20,}",
    r"\bGOCSPX-[A-Za-z0-9_-]{20,}",
    r"\bgh[pousr]_[A-Za-z0-9]{36,}",  # GitHub
    r"\bgithub_pat_[A-Za-z0-9_]{40,}",
    r"\bgl(?:pat|dt|rt|cbt|ptt)-[A-Za-z0-9_-]{20,}",  # GitLab
    r"\bhf_[A-Za-z0-9]{30,}",  # Hugging Face
    r"\bnpm_[A-Za-z0-9]{36}",
    r"\bpypi-[A-Za-z0-9_-]{50,}",
    r"\bdckr_pat_[A-Za-z0-9_-]{20,}",
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",  # Slack
    r"https://hooks\.slack\.com/services/[A-Za-z0-9/]{20,}",
    r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{32,}",  # SendGrid
    r"\bdop_v1_[0-9a-f]{64}",  # DigitalOcean
    r"\bhv[sb]\.[A-Za-z0-9_-]{24,}",  # Vault
    r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",  # JSON web tokens
)
_SHAPES = re.compile("|".join(SHAPES), re.DOTALL)
_IN_URL = re.compile(r"(://[^\s/:@]*:)[^\s/@]+(@)")
_HEADER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{12,}")
_WORDS = (
    "password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|authorization|cookie|"
    "credentials?"
)
_NAMED = re.compile(rf"(?i)((?:{_WORDS})[\"']?\s*[=:]\s*)(\"[^\"\n]+\"|'[^'\n]+'|[^\s,;\"'\[]\S*)")
_NAME = re.compile(rf"(?i)(?:.*[_-])?(?:{_WORDS})")


def without_secrets(text: str) -> str:
    """Return the text with `MARK` in place of what looks like a secret."""
    text = _SHAPES.sub(MARK, text)
    text = _IN_URL.sub(rf"\1{MARK}\2", text)
    text = _HEADER.sub(rf"\1 {MARK}", text)
    return _NAMED.sub(rf"\1{MARK}", text)


def names_a_secret(name: str) -> bool:
    """Return whether a field of this name holds a secret, whatever that looks like: `api_key`, not `max_tokens`."""
    return _NAME.fullmatch(name) is not None

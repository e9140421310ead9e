"""The program that a request came from, by its header `user-agent`: one of a few families, for figures."""

_BEGINS = {
    "claude-cli": "claude-code",
    "codex": "codex",
    "opencode": "opencode",
    "aider": "aider",
    "litellm": "litellm",
    "openai/": "openai-sdk",
    "asyncopenai/": "openai-sdk",
    "anthropic/": "anthropic-sdk",
    "asyncanthropic/": "anthropic-sdk",
    "ollama": "ollama",
    "mozilla": "browser",
}
"""Families by how the header begins, in lower case."""
NONE, OTHER = "none", "other"


def client_family(user_agent: str) -> str:
    given = user_agent.strip().lower()
    if not given:
        return NONE
    return next((family for begin, family in _BEGINS.items() if given.startswith(begin)), OTHER)

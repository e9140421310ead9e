import pytest

from prolepsis.server.answering.account import client_family


@pytest.mark.parametrize(
    ("user_agent", "family"),
    [
        ("claude-cli/2.1.160 (external, cli)", "claude-code"),
        ("codex_cli_rs/0.63.0 (Debian 12; x86_64)", "codex"),
        ("OpenAI/Python 2.8.1", "openai-sdk"),
        ("AsyncOpenAI/Python 2.8.1", "openai-sdk"),
        ("Anthropic/JS 0.60.0", "anthropic-sdk"),
        ("ollama-python/0.6.0 (x86_64 linux) Python/3.11", "ollama"),
        ("Mozilla/5.0 (X11; Linux x86_64)", "browser"),
        ("curl/8.5.0", "other"),
        ("not claude-cli", "other"),
        (" ", "none"),
    ],
)
def test_family_of_a_user_agent(user_agent: str, family: str) -> None:
    assert client_family(user_agent) == family

"""What a server that is ready says of itself: where it is, a request to try, what it runs, what drafts may bring."""

import json
from dataclasses import dataclass

from prolepsis.core.config import ServerConfig
from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.network import EVERYWHERE, url_of


@dataclass(frozen=True, slots=True)
class Banner:
    url: str
    console: str
    playground: str
    try_it: str  # a command that gets an answer when it is pasted
    model: str
    forward: str
    exactness: str
    draft_head: str
    speculation: str
    access: str


def banner_of(config: ServerConfig, info: EngineInfo, *, keys_required: bool) -> Banner:
    """Return the banner of a server at `config.port`, which is the one it got."""
    host = "127.0.0.1" if config.host in EVERYWHERE else config.host
    url = url_of(host, config.port, tls=config.tls_certificate is not None)
    model = config.served_model_names[0] if config.served_model_names else info.model
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Say hello."}]})
    key = '-H "authorization: Bearer $PROLEPSIS_API_KEY" ' if keys_required else ""
    quoted = body.replace("'", "'\\''")
    return Banner(
        url=f"{url}/v1",
        console=f"{url}/console",
        playground=f"{url}/console/playground",
        try_it=f"curl {url}/v1/chat/completions {key}-H 'content-type: application/json' -d '{quoted}'",
        model=model,
        forward=info.forward,
        exactness=f"{info.exactness}: {info.exactness_reason}",
        draft_head=f"{info.draft_head or 'none'}: {info.draft_head_reason or 'this engine has no heads'}",
        speculation=expected_gain(info),
        access="by API key" if keys_required else "no key: every user of this machine may do everything",
    )


def expected_gain(info: EngineInfo) -> str:
    """Return what drafts can be expected to bring here, and what that rests on."""
    if not info.proposers:
        return "off: nothing drafts"
    by = f"drafts of {', '.join(info.proposers)}"
    if not info.paying_loads:
        return f"{by}; what they bring here is not known yet"
    return f"{by}; by the measured cost of passes {info.paying_loads}; what they bring shows with the first answers"

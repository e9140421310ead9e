"""Do the usual calls of clients work: a chat, a stream, a tool?

Usage: PYTHON -m benchmarks.contracts.clients URL [--model NAME] [--key KEY] [--only NAME] [--json OUT]

PYTHON is that of an environment of its own, into which `pip install -r benchmarks/contracts/clients.txt` has put the
clients; it needs nothing else. A client that is not installed is left out of the table. Exits 1 where a call fails.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

QUESTION = "What is the weather in Rome? Use the tool."
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
MOST = 60
SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
FUNCTION: Any = {"name": "get_weather", "description": "The weather of a city.", "parameters": SCHEMA}
TOOL: Any = {"type": "function", "function": FUNCTION}
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}


def get_weather(city: str) -> str:
    """Return the weather of a city."""
    return f"Sunny in {city}."


@dataclass(frozen=True, slots=True)
class Target:
    """The server that is asked."""

    url: str
    model: str
    key: str


def _litellm(to: Target, kind: str) -> object:
    import litellm

    more: Any = {"tools": [TOOL], "tool_choice": NAMED} if kind == "tools" else {}
    reply: Any = litellm.completion(
        model=f"openai/{to.model}", api_base=f"{to.url}/v1", api_key=to.key, messages=MESSAGES, max_tokens=MOST,
        stream=kind == "stream", **more,
    )  # fmt: skip
    if kind == "stream":
        return "".join(part.choices[0].delta.content or "" for part in reply)
    message = reply.choices[0].message
    return message.tool_calls[0].function.name if kind == "tools" else message.content


def _langchain(to: Target, kind: str) -> object:
    from langchain_openai import ChatOpenAI

    model: Any = ChatOpenAI(model=to.model, base_url=f"{to.url}/v1", api_key=to.key, max_tokens=MOST)
    if kind == "stream":
        return "".join(part.content for part in model.stream(QUESTION))
    if kind == "tools":
        return model.bind_tools([TOOL], tool_choice="get_weather").invoke(QUESTION).tool_calls[0]["name"]
    return model.invoke(QUESTION).content


def _anthropic(to: Target, kind: str) -> object:
    import anthropic

    client = anthropic.Anthropic(base_url=to.url, api_key=to.key, max_retries=0)
    asked: Any = {"model": to.model, "max_tokens": MOST, "messages": MESSAGES}
    if kind == "stream":
        with client.messages.stream(**asked) as stream:
            return "".join(stream.text_stream)
    if kind == "tools":
        tool: Any = {"name": "get_weather", "description": FUNCTION["description"], "input_schema": SCHEMA}
        choice: Any = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
        reply: Any = client.messages.create(**asked, tools=[tool], tool_choice=choice)
        return reply.content[0].name
    reply = client.messages.create(**asked)
    return reply.content[0].text


def _ollama(to: Target, kind: str) -> object:
    import ollama

    client = ollama.Client(host=to.url, headers={"authorization": f"Bearer {to.key}"})
    asked: Any = {"model": to.model, "messages": MESSAGES, "options": {"num_predict": MOST}}
    if kind == "stream":
        return "".join(part.message.content or "" for part in client.chat(**asked, stream=True))
    reply: Any = client.chat(**asked, tools=[get_weather] if kind == "tools" else None)
    return reply.message if kind == "tools" else reply.message.content


def _llama_index(to: Target, kind: str) -> object:
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    model: Any = OpenAILike(
        model=to.model, api_base=f"{to.url}/v1", api_key=to.key, is_chat_model=True, is_function_calling_model=True,
        max_tokens=MOST, context_window=8192,
    )  # fmt: skip
    asked = [ChatMessage(role="user", content=QUESTION)]
    if kind == "stream":
        return "".join(part.delta or "" for part in model.stream_chat(asked))
    if kind == "tools":
        tool = FunctionTool.from_defaults(fn=get_weather)
        reply = model.chat_with_tools([tool], chat_history=asked, tool_required=True)
        return model.get_tool_calls_from_response(reply)[0].tool_name
    return model.chat(asked).message.content


CLIENTS: Mapping[str, Callable[[Target, str], object]] = {
    "litellm": _litellm,
    "langchain-openai": _langchain,
    "anthropic": _anthropic,
    "ollama": _ollama,
    "llama-index-llms-openai-like": _llama_index,
}
"""By the distribution that brings each."""
KINDS = ("chat", "stream", "tools")


def tried(call: Callable[[Target, str], object], to: Target, kind: str) -> str:
    """Make one call; return what came of it."""
    try:
        result = call(to, kind)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200].replace("\n", " ")
    return "works" if result else "an empty answer"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--model", required=True)
    parser.add_argument("--key", default="none")
    parser.add_argument("--only", default="", help="clients whose names have this text")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    to = Target(args.url.rstrip("/"), args.model, args.key)
    found: dict[str, dict[str, str]] = {}
    for name, call in CLIENTS.items():
        try:
            of = version(name)
        except PackageNotFoundError:
            continue
        if args.only in name:
            found[f"{name} {of}"] = {kind: tried(call, to, kind) for kind in KINDS}
            print(f"{name} {of}: {found[f'{name} {of}']}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2))
    sys.exit(any(one != "works" for kinds in found.values() for one in kinds.values()))


if __name__ == "__main__":
    main()

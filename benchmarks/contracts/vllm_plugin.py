"""A pytest plugin that runs vLLM's endpoint tests, of a checkout, against a server at a URL.

In place of vLLM stand modules whose parts may be imported. A test that calls one of them is skipped, with what it
needs. Environment: CONTRACT_URL; CONTRACT_TOKENIZER, a folder of transformers; CONTRACT_OUTCOMES, the file that gets
a JSON line for each test.
"""

import importlib
import importlib.abc
import importlib.machinery
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import httpx2
import openai
import pytest
from transformers import AutoConfig, AutoTokenizer

URL = os.environ["CONTRACT_URL"].rstrip("/")
TOKENIZER = os.environ["CONTRACT_TOKENIZER"]
KEY = "none"


class RemoteServer:
    """The server at the URL, with the methods of vLLM's class that starts one."""

    DUMMY_API_KEY = KEY
    host, port = httpx2.URL(URL).host, httpx2.URL(URL).port
    url_root = URL
    uds = None
    show_hidden_metrics = False

    def __init__(self, model: str, arguments: Sequence[str], **settings: Any) -> None:
        """Start nothing: the arguments are those of vLLM's command."""

    def __enter__(self) -> "RemoteServer":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def url_for(self, *parts: str) -> str:
        return "/".join((URL, *parts))

    def get_client(self, **settings: Any) -> openai.OpenAI:
        return openai.OpenAI(**{"base_url": self.url_for("v1"), "api_key": KEY, "max_retries": 0, **settings})

    def get_async_client(self, **settings: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**{"base_url": self.url_for("v1"), "api_key": KEY, "max_retries": 0, **settings})

    def get_client_anthropic(self, **settings: Any) -> Any:
        import anthropic

        return anthropic.Anthropic(**{"base_url": URL, "api_key": KEY, "max_retries": 0, **settings})

    def get_async_client_anthropic(self, **settings: Any) -> Any:
        import anthropic

        return anthropic.AsyncAnthropic(**{"base_url": URL, "api_key": KEY, "max_retries": 0, **settings})


class Absent(ModuleType):
    """A module or a name of a package that is not installed."""

    __path__: list[str] = []  # noqa: RUF012 - what makes a module a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith("Error"):
            return type(name, (Exception,), {})
        path = f"{self.__name__}.{name}"
        return importlib.import_module(path) if path in KNOWN else Absent(path)

    def __call__(self, *arguments: object, **settings: object) -> Any:
        pytest.skip(f"calls {self.__name__}", allow_module_level=True)

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __or__(self, other: object) -> Any:
        return object

    __ror__ = __or__


class Platform(Absent):
    """The platform that tests ask what it is: none of those that need a case of their own."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: False


class ModelConfig:
    """What tests read of a model's configuration."""

    def __init__(self, **settings: object) -> None:
        """Read the configuration of the tokenizer's folder, whatever model is named."""
        self.vocab_size = AutoConfig.from_pretrained(TOKENIZER).vocab_size

    def get_vocab_size(self) -> int:
        return int(self.vocab_size)


class Downloads:
    """A hub from which no test gets anything."""

    def snapshot_download(self, repo_id: str, **settings: object) -> str:
        return repo_id


def tokenizer(*arguments: object, **settings: object) -> Any:
    return LOCAL


def version() -> str:
    return str(httpx2.get(f"{URL}/version").json().get("version"))


def known() -> dict[str, dict[str, Any]]:
    """Return the names, by module, that tests call and that something here stands for."""
    return {
        "tests.utils": {"RemoteOpenAIServer": RemoteServer, "ROCM_EXTRA_ARGS": [], "VLLM_PATH": "/none"},
        "tests.conftest": {},
        "vllm.config": {"ModelConfig": ModelConfig},
        "vllm.envs": {"VLLM_USE_RUST_FRONTEND": False},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.platforms": {"current_platform": Platform("current_platform")},
        "vllm.tokenizers": {"get_tokenizer": tokenizer},
        "vllm.transformers_utils.repo_utils": {"hf_api": Downloads},
        "vllm.version": {"__version__": version(), "_prev_minor_version": lambda: "0.32"},
    }


KNOWN = known()


class Stand(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of vLLM, and those of its tests that would start it."""

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name == "vllm" or name.startswith("vllm.") or name in KNOWN:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(KNOWN.get(module.__name__, {}))


sys.meta_path.insert(0, Stand())
LOCAL = AutoTokenizer.from_pretrained(TOKENIZER)
AutoTokenizer.from_pretrained = lambda *arguments, **settings: LOCAL  # whatever model a test names


@pytest.fixture(scope="session")
def local_asset_server() -> None:
    """Stand for the server of pictures, which no test of texts asks."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: object) -> Any:
    """Write what became of each test."""
    report = yield
    if report.when == "call" or report.outcome != "passed":
        with open(os.environ["CONTRACT_OUTCOMES"], "a") as file:
            file.write(json.dumps({"test": item.nodeid, "outcome": report.outcome, "why": why(report)}) + "\n")
    return report


def why(report: pytest.TestReport) -> str:
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    crash = getattr(report.longrepr, "reprcrash", None)
    return "" if report.passed else str(crash.message if crash else report.longrepr)[:600]

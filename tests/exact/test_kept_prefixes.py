"""A prompt that is there again after a restart gives the tokens of one that is read, on the real forward."""

from dataclasses import replace
from pathlib import Path

import pytest

from prolepsis.core.events import Finished
from prolepsis.core.files import cache_directory
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine import paging
from prolepsis.engine.build import assemble
from tests.exact.oracle import CONFIG, PROMPT, ask, plain, serve, target
from tests.fakes import outputs, terminals


@pytest.fixture(autouse=True)
def _own_prefixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("native", "profiles", "checks"):
        if (kept := cache_directory() / name).exists():
            (tmp_path / name).symlink_to(kept)
    monkeypatch.setenv("PROLEPSIS_CACHE", str(tmp_path))
    monkeypatch.setattr(paging, "LEAST_TOKENS", PAGE_SIZE)


@pytest.mark.parametrize("name", ["greedy", "sampled"])
def test_a_prompt_from_disk_gives_the_tokens_of_one_that_was_read(name: str) -> None:
    config = CONFIG.model_copy(update={"prefix_disk": "64MiB"})
    source = ask(name, "a", prompt=PROMPT)
    first = assemble(config, target())
    serve(first, source)
    first.wait(0.0)
    assert not first.scheduler.keep_next(), "an idle engine has written all"
    second = assemble(config, target())
    events = serve(second, replace(source, request_id="b"))
    end = terminals(events)["b"]
    assert isinstance(end, Finished)
    assert end.stats.num_cached_tokens == (len(PROMPT) - 1) // PAGE_SIZE * PAGE_SIZE > 0
    assert outputs(events)["b", 0] == plain(name, prompt=PROMPT)[0]

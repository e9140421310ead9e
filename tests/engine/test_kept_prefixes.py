"""Pages of prompts on disk: there again after a restart, whole or not at all, bounded, and of one tenant each."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.kept_prefixes import FOLDER, KeptPrefixes, forget_prefixes
from prolepsis.engine.kv.pages import PagePool, extend_hashes

NUM_PAGES = 64
PAGE_BYTES = 2 * (4 + 8)
FILE_BYTES = 32 + PAGE_BYTES


class Site:
    """A pool and the storage of an engine, which keeps its prefixes in a folder."""

    def __init__(self, folder: Path, most_bytes: int = 1 << 20) -> None:
        self.pool = PagePool(NUM_PAGES, PAGE_SIZE)
        self.keys, self.values = torch.zeros(NUM_PAGES, 4, dtype=torch.bfloat16), torch.zeros(NUM_PAGES, 2, 4)
        self.values = self.values.to(torch.bfloat16)
        self.kept = KeptPrefixes(folder, most_bytes, self.pool, self.views)
        self.kept.restore()

    def views(self, page: int) -> Sequence[Tensor]:
        return [self.keys[page], self.values[page]]

    def read(self, tenant: str, first_token: int, num_pages: int) -> list[bytes]:
        """Read a prompt, which fills pages with values of its own; return their hashes."""
        hashes: list[bytes] = []
        tokens = range(first_token, first_token + num_pages * PAGE_SIZE)
        extend_hashes(hashes, list(tokens), PAGE_SIZE, tenant, num_pages)
        pages = self.pool.allocate(num_pages)
        for i, (page, key) in enumerate(zip(pages, hashes, strict=True)):
            self.keys[page], self.values[page] = first_token + i, -i
            self.pool.publish(page, key)
        self.pool.release(reversed(pages))
        self.kept.used(tenant, hashes)
        return hashes

    def write_all(self) -> None:
        while self.kept.keep_next():
            pass

    def found(self, hashes: Sequence[bytes]) -> int:
        pages = self.pool.match(hashes)
        self.pool.release(pages)
        return len(pages)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROLEPSIS_CACHE", str(tmp_path))
    return tmp_path / FOLDER / "one"


def test_a_prompt_that_was_read_is_there_after_a_restart(folder: Path) -> None:
    before = Site(folder)
    hashes = before.read("acme", 1, 5)
    before.write_all()
    after = Site(folder)
    pages = after.pool.match(hashes)
    assert len(pages) == 5
    assert [after.keys[page].tolist() for page in pages] == [[i + 1.0] * 4 for i in range(5)]
    assert [after.values[page].flatten().tolist() for page in pages] == [[-float(i)] * 8 for i in range(5)]
    after.pool.release(pages)
    after.pool.check([])
    assert (folder.stat().st_mode | next(folder.iterdir()).stat().st_mode) & 0o077 == folder.stat().st_mode & 0o077


def test_another_forward_finds_nothing(folder: Path) -> None:
    before = Site(folder)
    hashes = before.read("acme", 1, 3)
    before.write_all()
    assert Site(folder.with_name("two")).found(hashes) == 0


@pytest.mark.parametrize("harm", [lambda text: text[:-1], lambda text: text[:-1] + b"x", lambda _: b""])
def test_a_damaged_file_is_no_page(folder: Path, harm: object) -> None:
    before = Site(folder)
    hashes = before.read("acme", 1, 4)
    before.write_all()
    [file] = folder.glob(f"*/{hashes[2].hex()}")
    assert callable(harm)
    file.write_bytes(harm(file.read_bytes()))
    after = Site(folder)
    assert after.found(hashes) == 2
    after.pool.check([])
    assert not file.exists()


def test_a_write_that_was_cut_off_leaves_the_front_for_last(folder: Path) -> None:
    """So a page on disk without those before it, which cannot be found, is there only until the next time."""
    before = Site(folder)
    hashes = before.read("acme", 1, 4)
    assert before.kept.keep_next()
    assert [file.name for file in folder.glob("*/*")] == [hashes[-1].hex()]
    before.write_all()
    os.utime(next(folder.glob(f"*/{hashes[0].hex()}")), (2e9, 2e9))
    assert Site(folder).found(hashes) == 4


def test_what_is_kept_is_bounded_and_a_tenant_with_much_gives_way_first(folder: Path) -> None:
    site = Site(folder, most_bytes=20 * FILE_BYTES)
    small = site.read("small", 1, 3)
    site.write_all()
    for i in range(1, 6):
        site.read("large", i * 10_000, 8)
        site.write_all()
    assert len(list(folder.glob("*/*"))) <= 20
    assert Site(folder).found(small) == 3


def test_more_than_half_of_the_pool_is_never_restored(folder: Path) -> None:
    site = Site(folder)
    for i in range(6):
        site.read("acme", i * 10_000, 8)
        site.write_all()
    assert len(list(folder.glob("*/*"))) == 48
    again = Site(folder)
    assert sum(again.pool.find(bytes.fromhex(file.name)) is not None for file in folder.glob("*/*")) == NUM_PAGES // 2


def test_a_tenant_can_be_forgotten(folder: Path) -> None:
    site = Site(folder)
    hashes, others = site.read("acme", 1, 3), site.read("other", 50_000, 2)
    site.write_all()
    forget_prefixes("acme")
    after = Site(folder)
    assert (after.found(hashes), after.found(others)) == (0, 2)


def test_a_disk_that_takes_nothing_costs_no_request(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    site = Site(folder)
    site.read("acme", 1, 3)
    assert not site.kept.keep_next()

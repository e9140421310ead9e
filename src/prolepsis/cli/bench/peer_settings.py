"""Where peers are found: the Python that runs each and the model it loads."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prolepsis.cli.bench.peers import VARIANTS, PeerSpec
from prolepsis.core.errors import ConfigError


def find_peers(
    wanted: Sequence[tuple[str, str]],
    pythons: Mapping[str, Path],
    models: Mapping[str, Path],
    exported: Callable[[], Path],
) -> tuple[PeerSpec, ...]:
    """Return what to start for each (kind, variant), from the configuration's `peer_python` and `peer_model`.

    A safetensors folder that is not given is made by `exported`. Raises `ConfigError` saying what is missing and how to
    give it.
    """
    for name, given in (("peer_python", pythons), ("peer_model", models)):
        for kind in given:
            if kind not in VARIANTS:
                raise ConfigError(f"{name} names {kind!r}; allowed: {', '.join(VARIANTS)}", param=name)
    specs = []
    for kind, variant in wanted:
        # A virtual environment's python is a link; resolving it would lose the environment.
        python = _existing("peer_python", kind, pythons.get(kind), "a Python that has it installed").absolute()
        model = models.get(kind) or (exported() if kind != "openvino" else None)
        what = "a folder of an fp16 IR" if kind == "openvino" else "a folder of safetensors"
        specs.append(PeerSpec(kind, variant, python, _existing("peer_model", kind, model, what).resolve()))
    return tuple(specs)


def _existing(field: str, kind: str, given: Path | None, what: str) -> Path:
    if given is not None and given.expanduser().exists():
        return given.expanduser()
    told = f"{given} does not exist" if given else "none is given"
    raise ConfigError(
        f"peer {kind} needs {what}; {told}. Give it as {field} in the configuration file, with "
        f"--{field.replace('_', '-')} {kind}=PATH or in PROLEPSIS_{field.upper()}",
        param=field,
    )

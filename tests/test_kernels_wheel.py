"""The sdist and the wheel of the kernels: what they hold, and that the libraries run without a compiler."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from build import ProjectBuilder
from prolepsis_kernels import declared
from pyproject_hooks import quiet_subprocess_runner

from prolepsis import __version__
from prolepsis.core.config import EngineConfig
from prolepsis.engine.models.load import load_model
from prolepsis.engine.models.protocol import SequenceInput, pack
from prolepsis.engine.models.targets import native
from prolepsis.engine.native import choice
from prolepsis.engine.native.build import compiled
from prolepsis.engine.native.choice import ChosenKernel, prebuilt, sources_of
from prolepsis.engine.native.decoder import fault, pick_decoder
from prolepsis.engine.native.forward import DecoderLibrary
from prolepsis.engine.native.processor import instruction_sets, processor_flags, variants
from tests.distributions import unpacked
from tests.engine.native.programs import ARM_COMPILER, ARM_EMULATOR, needs_compiler
from tests.paths import ROOT
from tests.training.targets import save_target

KERNELS = ROOT / "kernels"
MOST_BYTES = 15 * 2**20
SYSTEM = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0", "ld-linux-x86-64.so.2"}
_LACKED = [name for name in ("scikit_build_core",) if find_spec(name) is None] + [
    name for name in ("cmake", "readelf") if shutil.which(name) is None
]
needs_tools = pytest.mark.skipif(bool(_LACKED), reason=f"not installed: {', '.join(_LACKED)}")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that builds the wheel from the unpacked sdist: of the named libraries alone, or of all."""
    builder = ProjectBuilder(KERNELS, runner=quiet_subprocess_runner)
    sources = unpacked(Path(builder.build("sdist", tmp_path_factory.mktemp("sdist"))), tmp_path_factory.mktemp("tree"))

    def made(*names: str) -> Path:
        settings = {"cmake.define.PROLEPSIS_ONLY": ";".join(names)}
        wheel = ProjectBuilder(sources, runner=quiet_subprocess_runner)
        return Path(wheel.build("wheel", tmp_path_factory.mktemp("wheel"), settings))

    return made


def installed(wheel: Path, into: Path) -> Path:
    """Unpack the wheel, as installing does, and return the folder of its libraries."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into)
    return into / "prolepsis_kernels" / "libraries"


def needed(library: Path) -> set[str]:
    """Return the shared libraries that a library is linked with."""
    listed = subprocess.run(["readelf", "-d", str(library)], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", listed))


def test_both_packages_have_one_version_and_the_engine_requires_it() -> None:
    kernels = tomllib.loads((KERNELS / "pyproject.toml").read_text())["project"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert kernels["version"] == __version__
    assert f"{kernels['name']}=={__version__}" in extras["engine"]
    assert (KERNELS / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


@needs_tools
@needs_compiler
def test_the_wheel_has_sources_and_a_library_of_them(build: Callable[..., Path], tmp_path: Path) -> None:
    wheel = build("common")
    assert re.fullmatch(rf"prolepsis_kernels-{__version__}-py3-none-linux_\w+\.whl", wheel.name)
    library = installed(wheel, tmp_path) / "common.so"
    sources = declared()[0].folder
    assert {path.name for path in (tmp_path / "prolepsis_kernels" / "sources").iterdir()} == {
        path.name for path in sources.iterdir()
    }
    assert sources_of(library) == declared()[0].sources_hash
    assert needed(library) <= SYSTEM


@needs_tools
@needs_compiler
@pytest.mark.night
@pytest.mark.timeout(1800)
def test_all_variants_run_in_one_process_as_those_compiled_here(
    build: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = build()
    assert wheel.stat().st_size < MOST_BYTES
    folder = installed(wheel, tmp_path)
    assert {path.stem for path in folder.iterdir()} == {"common", *(spec.name for spec in variants())}
    assert all(needed(path) <= SYSTEM for path in folder.iterdir())
    monkeypatch.setattr(choice, "LIBRARIES", folder)
    run_here, tiny = instruction_sets(processor_flags()), save_target(tmp_path / "tiny", native=True)
    assert run_here
    pairs = {spec.name: (prebuilt(spec), compiled(spec)) for spec in variants() if spec.name in run_here}
    monkeypatch.setenv("PROLEPSIS_CACHE", str(tmp_path / "none"))  # for weights in 8 bits
    for name, pair in pairs.items():
        from_wheel, from_here = (logits(library, tiny, monkeypatch) for library in pair)
        assert torch.equal(from_wheel, from_here), name
    alone = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'src'}"}
    assert started_without_a_compiler(alone) == f"{run_here[0]} prebuilt"


def logits(library: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """Return the logits of a prompt and of a step on this library."""
    kernel = DecoderLibrary(library)
    assert fault(kernel) is None, library
    monkeypatch.setattr(native, "pick_decoder", lambda: ChosenKernel(kernel, library.stem, library, "prebuilt", ()))
    target = load_model(EngineConfig(model=str(model), forward="native", weights="q8")).model
    cache = target.make_cache(2)
    prompt = target.forward(pack([SequenceInput([*range(1, 34)], 0, [0, 1])]), cache)
    return torch.cat([prompt, target.forward(pack([SequenceInput([7], 33, [0, 1])]), cache)])


@needs_compiler
def test_without_a_compiler_a_kept_build_runs() -> None:
    """The build was made by this process or an earlier one."""
    kernel = pick_decoder()
    assert started_without_a_compiler({}) == f"{kernel.name} {kernel.origin}"
    assert choice.expected().name == kernel.name


def started_without_a_compiler(environment: dict[str, str]) -> str:
    """Return variant and origin of the native forward in a process that finds no program at all."""
    code = "from prolepsis.engine.native.decoder import pick_decoder as p; print(p().name, p().origin)"
    clean = {name: value for name, value in os.environ.items() if name != "CXX"} | environment | {"PATH": ""}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=clean).stdout.strip()


@needs_tools
@pytest.mark.night
@pytest.mark.timeout(1800)
def test_the_libraries_for_arm_are_built_and_open(tmp_path: Path) -> None:
    for tool in (ARM_COMPILER, ARM_EMULATOR):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (Debian: g++-aarch64-linux-gnu, qemu-user, libsimde-dev)")
    kind = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={ARM_COMPILER}"]
    subprocess.run(["cmake", "-S", KERNELS, "-B", tmp_path, *kind], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", tmp_path, "-j", "2"], check=True, capture_output=True)
    opener = tmp_path / "opener"
    (tmp_path / "opener.cpp").write_text(OPENER)
    subprocess.run([ARM_COMPILER, str(tmp_path / "opener.cpp"), "-o", str(opener)], check=True)
    for name in ("common", "armv8_dotprod"):
        command = [ARM_EMULATOR, "-L", "/usr/aarch64-linux-gnu", str(opener), str(tmp_path / f"{name}.so")]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert said == declared()[0].sources_hash


OPENER = """
#include <dlfcn.h>
#include <cstdio>
int main(int, char** words) {
  void* library = dlopen(words[1], RTLD_NOW);
  if (!library) return std::puts(dlerror());
  std::fputs(reinterpret_cast<const char* (*)()>(dlsym(library, "prolepsis_sources"))(), stdout);
}
"""

"""The parts of a report that are about peers: our speed over theirs, their outputs, and the peers that failed."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.peers.process import Peer
from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.terminal.output import print_table, warn
from prolepsis.lab.measure.contenders import PLAIN, Run
from prolepsis.lab.measure.gates import quote
from prolepsis.lab.measure.provenance import hardware
from prolepsis.lab.measure.report import ALL, Figures, Setting, document, print_report, print_sentence, ranged

FAIRNESS = (
    " Peers empty their caches at the same points, and their processes are stopped while others run. `against` is our"
    " rate over the peer's, within one repeat."
)


def peers_document(
    setting: Setting, runs: Sequence[Run], info: EngineInfo, provenance: Mapping[str, object], peers: Sequence[Peer]
) -> dict[str, Any]:
    """Return the report of a measurement with peers among the arms."""
    failed = {peer.name: peer.failure for peer in peers if peer.failure is not None}
    kept = [run for run in runs if run.outcomes and run.contender not in failed]
    report: dict[str, Any] = document(setting, kept, info, provenance)
    report["settings"] |= {
        "peers": [peer.name for peer in peers],
        "fairness": report["settings"]["fairness"] + FAIRNESS,
    }
    figures = Figures(kept)
    for name in figures.names:
        if name not in setting.arms:
            report["outputs"][name] = _outputs(figures, name)
    against = {str(level): _against(figures, setting.arms, level) for level in figures.levels}
    disturbed = max((peer.max_cpu_share for peer in peers), default=None)
    report["sentence"] = quote(figures, setting, info, hardware())
    return report | {"against": against, "peers_failed": failed, "peers_disturbed": disturbed}


def print_peers_report(report: Mapping[str, Any]) -> None:
    """Print the tables of the report, then our speed over each peer's and the peers that failed."""
    print_report(report)
    for level, of_level in report["against"].items():
        peers: Mapping[str, Any] = next(iter(of_level.values()), {})
        rows = [[peer, *(ranged(of_arm[peer]["all"], 2, "x") for of_arm in of_level.values())] for peer in peers]
        if rows:
            print_table(f"our speed over each peer's, {level} at a time", ["peer", *of_level], rows)
    for name, reason in report["peers_failed"].items():
        warn(f"{name} could not be measured: {reason}")
    print_sentence(report)


def base_of(name: str, names: Sequence[str]) -> str | None:
    """Return the contender whose tokens those of the peer `name` are compared with: its own plain decoding."""
    base = f"{name.partition(':')[0]}:{PLAIN}"
    return base if base in names else None


def _outputs(figures: Figures, name: str) -> dict[str, object]:
    base = base_of(name, figures.names)
    return {"compared_with": None, "concurrency": {}} if base is None else figures.outputs(name, base)


def _against(figures: Figures, arms: Sequence[str], level: int) -> dict[str, object]:
    peers = [name for name in figures.names if name not in arms and figures.has(name, level)]
    categories = figures.categories if level == 1 else [ALL]
    return {
        arm: {peer: {c: figures.ratio(arm, peer, level, c) for c in categories} for peer in peers}
        for arm in arms
        if peers and figures.has(arm, level)
    }

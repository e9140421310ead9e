"""`prolepsis tune`: the terms of a policy, and settings of the engine, that rehearsals of a trace find best."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.output import (
    FAILED,
    AsJson,
    note,
    print_facts,
    print_json,
    print_table,
    quiet_logs,
)

if TYPE_CHECKING:
    from prolepsis.control.policy.model import Policy
    from prolepsis.server.rehearsal.tune import Tuning, TuningGoal, TuningTrial


def tune(
    trace: Annotated[Path, typer.Argument(help="a recording, whose drafts are known")],
    *,
    machine: Annotated[Path, typer.Option("--machine", help="what `rehearse measure` wrote")],
    goal: Annotated[str, typer.Option(help="latency, cost or goodput")] = "latency",
    policy: Annotated[Path | None, typer.Option(help="the policy in use; default: speculation where it pays")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="file for the policy that is found")] = None,
    rate: Annotated[float, typer.Option(min=0.001, help="times the arrivals of the trace")] = 1.0,
    requests: Annotated[int | None, typer.Option(min=1, help="only so many requests; default: all")] = None,
    seed: Annotated[int, typer.Option(help="of the times of passes")] = 0,
    goal_first_ms: Annotated[float, typer.Option(min=0, help="latest first token that counts for goodput")] = 2000.0,
    goal_token_ms: Annotated[float, typer.Option(min=0, help="longest time a token that counts")] = 100.0,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="exit with status 1 if a change is worth it")] = False,
    as_json: AsJson = False,
) -> None:
    """Search terms and settings for a goal; write a policy whose changed rules go through a rollout."""
    from prolepsis.server.cli.rehearse.command import machine_of, policy_of
    from prolepsis.server.rehearsal.goal import LatencyGoal
    from prolepsis.server.rehearsal.rehearsal import RehearsedServer
    from prolepsis.server.rehearsal.trace import read_trace
    from prolepsis.server.rehearsal.tune import rolled_out
    from prolepsis.server.rehearsal.tune import tune as search

    quiet_logs("error")  # what is rehearsed sheds load
    wanted = _goal(goal)
    played = read_trace(trace).scaled(rate=rate, most=requests)
    setting = RehearsedServer(machine=machine_of(machine), policy=policy_of(policy), seed=seed)
    within = LatencyGoal(first_token_s=goal_first_ms / 1000.0, per_token_s=goal_token_ms / 1000.0)
    tuning = search(played, setting, wanted, within, lambda one: note(f"rehearsed: {one.changed or 'as it is'}"))
    before = tuning.trials[0].policy
    after = rolled_out(before, tuning.best.policy)
    if output is not None:
        output.write_text(_text(after))
    if as_json:
        print_json(
            {
                "goal": wanted,
                "best": _plain(tuning.best),
                "settings": tuning.settings,
                "policy": _text(after),
                "frontier": [_plain(one) for one in tuning.frontier],
                "trials": [_plain(one) for one in tuning.trials],
            }
        )
    else:
        _show(tuning, wanted, before, after)
    if exit_code and tuning.best is not tuning.trials[0]:
        raise typer.Exit(FAILED)


def _goal(text: str) -> "TuningGoal":
    from prolepsis.server.rehearsal.tune import GOALS

    for goal in GOALS:
        if text == goal:
            return goal
    raise ConfigError(f"goal is {text!r}; allowed: {', '.join(GOALS)}", param="goal")


def _text(policy: "Policy") -> str:
    import yaml

    return yaml.safe_dump(policy.model_dump(mode="json", exclude_unset=True), sort_keys=False, allow_unicode=True)


def _plain(trial: "TuningTrial") -> dict[str, object]:
    names = ("changed", "latency_s", "machine_s_per_million", "goodput", "num_refused")
    return {name: getattr(trial, name) for name in names}


def _show(tuning: "Tuning", goal: str, before: "Policy", after: "Policy") -> None:
    from prolepsis.control.policy.explain import diff
    from prolepsis.core.terminal.documents import as_yaml

    heading = ["changed", "mean time", "machine s per million tokens", "goodput", "refused"]
    marks = {id(tuning.trials[0]): "as it is", id(tuning.best): f"best for {goal}: {tuning.best.changed}"}
    shown = [one for one in tuning.trials if one in tuning.frontier or id(one) in marks]
    print_table(
        f"the frontier of {len(tuning.trials)} rehearsals, where it began, and the best for {goal}",
        heading,
        [_row(one, marks.get(id(one), one.changed)) for one in shown],
    )
    changes = [one for one in diff(before, after) if not one.field.startswith(("rollout", "guardrails"))]
    rows = [[one.kind, one.rule, one.field, as_yaml(one.old), as_yaml(one.new)] for one in changes]
    if rows:
        print_table("changes of the policy, each under a rollout", ["", "rule", "field", "old", "new"], rows)
    flags = [f"--{name.replace('_', '-')} {value:g}" for name, value in tuning.settings.items()]
    print_facts(
        [
            ("policy", "see the changes" if rows else "as it is"),
            ("flags of serve", " ".join(flags) or "as they are"),
        ]
    )


def _row(one: "TuningTrial", words: str) -> list[str]:
    return [
        words,
        f"{one.latency_s:.3f} s",
        f"{one.machine_s_per_million:.0f}",
        f"{one.goodput:.2f}/s",
        str(one.num_refused),
    ]

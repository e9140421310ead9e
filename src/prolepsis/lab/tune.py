"""`prolepsis tune`: the terms of a policy, and settings of the engine, that rehearsals of a trace find best."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from prolepsis.core.files import write_output
from prolepsis.core.terminal.documents import print_reply
from prolepsis.core.terminal.output import FAILED, AsJson, note, quiet_logs, warn
from prolepsis.lab.measure.arrivals import GoalFirstMs, GoalTokenMs, LatencyGoal
from prolepsis.lab.rehearsal.trace import read_trace

if TYPE_CHECKING:
    from prolepsis.control.policy.model import Policy
    from prolepsis.lab.rehearsal.tune import Tuning

_FIGURES = ("changed", "latency_s", "machine_s_per_million", "goodput", "num_refused")
_COLUMNS = {
    "frontier": (
        *("is", "changed", "mean latency=latency_s", "machine time per million tokens=machine_s_per_million"),
        *("goodput", "num_refused"),
    ),
    "advice": ("of", "recorded requests=num_requests", "change=mode", "why"),
    "changes": ("kind", "rule", "field", "old", "new"),
}
_UNASKED = "not asked for (--default)"


def tune(
    trace: Annotated[Path, typer.Argument(help="a recording, whose drafts are known")],
    *,
    machine: Annotated[Path, typer.Option("--machine", help="what `rehearse measure` wrote")],
    goal: Annotated[Literal["latency", "cost", "goodput"], typer.Option(help="what is to be best")] = "latency",
    policy: Annotated[Path | None, typer.Option(help="the policy in use; default: speculation where it pays")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="file for the policy that is found")] = None,
    rate: Annotated[float, typer.Option(min=0.001, help="times the arrivals of the trace")] = 1.0,
    requests: Annotated[int | None, typer.Option(min=1, help="only so many requests; default: all")] = None,
    seed: Annotated[int, typer.Option(help="of the times of passes")] = 0,
    default: Annotated[bool, typer.Option("--default", help="tune the default too, for requests of no rule")] = False,
    goal_first_ms: GoalFirstMs = 2000.0,
    goal_token_ms: GoalTokenMs = 100.0,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="exit with status 1 if a change is worth it")] = False,
    as_json: AsJson = False,
) -> None:
    """Search terms and settings for a goal; write a policy whose changed rules go through a rollout."""
    from prolepsis.control.policy.model import DEFAULT_RULE
    from prolepsis.lab.rehearsal.rehearsal import RehearsedServer
    from prolepsis.lab.rehearsal.tune import rolled_out
    from prolepsis.lab.rehearsal.tune import tune as search
    from prolepsis.lab.rehearse import machine_of, policy_of

    quiet_logs("error")  # what is rehearsed sheds load
    played = read_trace(trace).scaled(rate=rate, most=requests)
    setting = RehearsedServer(machine=machine_of(machine), policy=policy_of(policy), seed=seed)
    within = LatencyGoal.of_ms(goal_first_ms, goal_token_ms)
    tuning = search(
        played,
        setting,
        goal,
        within,
        lambda trial: note(f"rehearsed: {trial.changed or 'as it is'}"),
        with_default=default,
    )
    found = rolled_out(tuning.trials[0].policy, tuning.best.policy)
    if output is not None:
        write_output(output, _text(found).encode())
    if not default and tuning.num_requests[DEFAULT_RULE] == len(played.lines):
        warn(f"no rule matches any of {len(played.lines)} requests, so no rule is tuned; --default tunes the default")
    document = _document(tuning, found)
    print_reply(document if as_json else {**document, "policy": output}, _COLUMNS, as_json=as_json)
    if exit_code and tuning.best is not tuning.trials[0]:
        raise typer.Exit(FAILED)


def _text(policy: "Policy") -> str:
    import yaml

    return yaml.safe_dump(policy.model_dump(mode="json", exclude_unset=True), sort_keys=False, allow_unicode=True)


def _document(tuning: "Tuning", found: "Policy") -> dict[str, Any]:
    """Return what was found; the frontier has the beginning and the best too."""
    from prolepsis.control.policy.explain import diff

    marks = {id(tuning.trials[0]): "as it is", id(tuning.best): f"best for {tuning.goal}"}
    shown = [trial for trial in tuning.trials if trial in tuning.frontier or id(trial) in marks]
    changes = (asdict(change) for change in diff(tuning.trials[0].policy, found))
    return {
        "goal": tuning.goal,
        "promise": tuning.promise,
        "flags_of_serve": [f"--{name.replace('_', '-')} {value:g}" for name, value in tuning.settings.items()],
        "policy": _text(found),
        "num_rehearsals": len(tuning.trials),
        "frontier": [
            {"is": marks.get(id(trial)), **{name: getattr(trial, name) for name in _FIGURES}} for trial in shown
        ],
        "advice": [
            {"of": name, "num_requests": number, **(asdict(advised) if advised else {"mode": _UNASKED})}
            for name, number in tuning.num_requests.items()
            for advised in (tuning.advice.get(name),)
        ],
        "changes": [change for change in changes if not change["field"].startswith(("rollout", "guardrails"))],
    }

"""`prolepsis tune`: the terms of a policy, and settings of the engine, that rehearsals of a trace find best."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from prolepsis.core.files import write_output
from prolepsis.core.terminal.output import FAILED, AsJson, note, print_facts, print_json, print_table, quiet_logs, warn
from prolepsis.lab.measure.arrivals import GoalFirstMs, GoalTokenMs

if TYPE_CHECKING:
    from prolepsis.control.policy.model import Policy
    from prolepsis.lab.rehearsal.tune import TuningPage, TuningTrial


def tune(
    trace: Annotated[Path, typer.Argument(help="a recording, whose drafts are known")],
    *,
    machine: Annotated[Path, typer.Option("--machine", help="what `rehearse measure` wrote")],
    goal: Annotated[Literal["latency", "cost", "goodput"], typer.Option(help="what is to be best")] = "latency",
    policy: Annotated[Path | None, typer.Option(help="the policy in use; default: speculation where it pays")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="file for the policy that is found")] = None,
    html: Annotated[Path | None, typer.Option(help="write a page with the frontier to this file")] = None,
    rate: Annotated[float, typer.Option(min=0.001, help="times the arrivals of the trace")] = 1.0,
    requests: Annotated[int | None, typer.Option(min=1, help="only so many requests; default: all")] = None,
    seed: Annotated[int, typer.Option(help="of the times of passes")] = 0,
    default: Annotated[bool, typer.Option("--default", help="tune the default too, for requests of no rule")] = False,
    goal_first_ms: GoalFirstMs = 2000.0,
    goal_token_ms: GoalTokenMs = 100.0,
    unchecked: Annotated[bool, typer.Option("--unchecked", help="also where no forecast was ever checked")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="exit with status 1 if a change is worth it")] = False,
    as_json: AsJson = False,
) -> None:
    """Search terms and settings for a goal; write a policy whose changed rules go through a rollout."""
    from prolepsis.control.policy.model import DEFAULT_RULE
    from prolepsis.lab.measure.arrivals import LatencyGoal
    from prolepsis.lab.rehearsal.rehearsal import RehearsedServer
    from prolepsis.lab.rehearsal.trace import read_trace
    from prolepsis.lab.rehearsal.tune import TuningPage, rolled_out
    from prolepsis.lab.rehearsal.tune import tune as search
    from prolepsis.lab.rehearse import machine_of, policy_of, refuse_unchecked

    quiet_logs("error")  # what is rehearsed sheds load
    played, measured = read_trace(trace).scaled(rate=rate, most=requests), machine_of(machine)
    if not unchecked:
        refuse_unchecked(measured, machine)
    setting = RehearsedServer(machine=measured, policy=policy_of(policy), seed=seed)
    within = LatencyGoal.of_ms(goal_first_ms, goal_token_ms)
    tuning = search(
        played,
        setting,
        goal,
        within,
        lambda trial: note(f"rehearsed: {trial.changed or 'as it is'}"),
        with_default=default,
    )
    before = tuning.trials[0].policy
    after = rolled_out(before, tuning.best.policy)
    page = TuningPage(tuning, goal, trace.name, machine.name, _text(after))
    if output is not None:
        write_output(output, page.policy.encode())
    if html is not None:
        write_output(html, page.html().encode(), "html")
    if not default and tuning.num_requests[DEFAULT_RULE] == len(played.lines):
        warn(f"no rule matches any of {len(played.lines)} requests, so no rule is tuned; --default tunes the default")
    if as_json:
        print_json(_plain(page))
    else:
        _show(page, before, after)
    if exit_code and tuning.best is not tuning.trials[0]:
        raise typer.Exit(FAILED)


def _text(policy: "Policy") -> str:
    import yaml

    return yaml.safe_dump(policy.model_dump(mode="json", exclude_unset=True), sort_keys=False, allow_unicode=True)


def _plain(page: "TuningPage") -> dict[str, object]:
    names = ("changed", "latency_s", "machine_s_per_million", "goodput", "num_refused")

    def plain(trial: "TuningTrial") -> dict[str, object]:
        return {name: getattr(trial, name) for name in names}

    tuning = page.tuning
    trials = {"best": plain(tuning.best), "frontier": [*map(plain, tuning.frontier)]}
    advice = {name: asdict(advised) for name, advised in tuning.advice.items()}
    known = {"num_requests": tuning.num_requests, "advice": advice, "promise": tuning.promise}
    rest = {"settings": tuning.settings, "policy": page.policy, "trials": [*map(plain, tuning.trials)]}
    return {"goal": page.goal, **trials, **known, **rest}


def _show(page: "TuningPage", before: "Policy", after: "Policy") -> None:
    from prolepsis.control.policy.explain import diff
    from prolepsis.core.terminal.documents import as_yaml

    for title, (heading, of_page) in page.tables().items():
        print_table(title, heading, of_page, in_order=True)
    changes = [change for change in diff(before, after) if not change.field.startswith(("rollout", "guardrails"))]
    rows = [[change.kind, change.rule, change.field, as_yaml(change.old), as_yaml(change.new)] for change in changes]
    if rows:
        print_table("changes of the policy, each under a rollout", ["", "rule", "field", "old", "new"], rows)
    flags = [f"--{name.replace('_', '-')} {value:g}" for name, value in page.tuning.settings.items()]
    policy = "see the changes" if rows else "as it is"
    facts = [("policy", policy), ("flags of serve", " ".join(flags) or "as they are")]
    measured = f"passes of up to {page.tuning.best.machine.measured_tokens} tokens"
    print_facts([*facts, ("promise", page.tuning.promise), ("measured, and so tried", measured)])

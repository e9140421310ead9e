"""A rollout of three stages with one guardrail, and evidence that decides it."""

from prolepsis.control.rollout.machine import Command, RolloutState, command
from prolepsis.control.rollout.settings import RolloutSettings, Stage
from prolepsis.control.rollout.store import RolloutStore
from prolepsis.control.statistics.arms import ArmScores, ScoreHistogram
from prolepsis.control.statistics.guardrail import Guardrail
from prolepsis.control.statistics.judge import StageEvidence
from prolepsis.control.statistics.means import Limit, MeanDifference
from prolepsis.control.store.migrate import migrated_in_memory

ERRORS = Guardrail(name="errors", metric="error", measure=MeanDifference(margin=0.05, baseline=0.01))
SHADOW_ERRORS = Guardrail(name="errors", metric="error", measure=Limit(limit=0.05))
STAGES = (
    Stage(name="shadow", kind="shadow", share=1.0, guardrails=(SHADOW_ERRORS,), minimum_s=10.0, maximum_s=100.0),
    Stage(name="canary 5%", share=0.05, guardrails=(ERRORS,), minimum_s=10.0, maximum_s=100.0),
    Stage(name="canary 50%", share=0.5, guardrails=(ERRORS,), minimum_s=10.0, maximum_s=100.0, manual_gate=True),
)
SETTINGS = RolloutSettings(stages=STAGES)
NEW = RolloutState("r1", policy_version="7")


def counts(stage: int, canary_errors: float, errors: int = 0, num_canary: int = 1000) -> StageEvidence:
    """Return evidence with as many requests on each arm as the stage's share asks for, the control without errors."""
    share = STAGES[stage].share
    num_control = 0 if stage == 0 else round(num_canary * (1 - share) / share)
    bad = canary_errors * num_canary
    arms = ArmScores(
        ScoreHistogram((num_canary - bad, bad), num_canary), ScoreHistogram((float(num_control), 0.0), num_control)
    )
    return StageEvidence("r1", stage, {"errors": arms}, num_canary, num_control, errors, run=1)


def by_hand(state: RolloutState, what: Command, now: float) -> RolloutState:
    return command(state, what, now, SETTINGS, "somebody")[0]


def running_in(stage: int, since: float = 0.0) -> RolloutState:
    return RolloutState("r1", policy_version="7", version=3, run=1, phase="running", stage=stage, stage_since=since)


def memory_store() -> RolloutStore:
    return RolloutStore(migrated_in_memory())

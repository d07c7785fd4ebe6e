"""Long runs of the paper's policies, for what 500 rounds cannot show: stable queues and logarithmic regret.

Each policy runs with the quotas as printed, which sum to the number of channels and leave no room for a late upload,
and with the quotas lowered by an eighth, which most networks can serve.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from fedlane.experiments.labels import FASHION_MNIST, PAPER_POLICIES
from fedlane.experiments.reproduce import ReproductionPlan
from fedlane.experiments.store import Experiment, ResultStore

LONG_FACTOR = 16
"""Length of the long runs relative to the figures' runs: 8,000 rounds where those have 500."""
LONG_SEEDS = 20
LONG_SLACK = 0.125
SLACK_POLICIES = tuple(f"{policy},quota_slack={LONG_SLACK:g}" for policy in PAPER_POLICIES)
SUCCESS_POLICY = f"mamab-om:V=10,quota_slack={LONG_SLACK:g},queue_weight=success"
"""The queue weighted by the probability of success (reading 12)."""
LONG_POLICIES = (*PAPER_POLICIES, *SLACK_POLICIES, SUCCESS_POLICY, "lane")


def long_plan(plan: ReproductionPlan) -> ReproductionPlan:
    """The plan of the long runs: Fashion-MNIST's network, fewer seeds, no learning."""
    tasks = tuple(task for task in plan.tasks if task == FASHION_MNIST)
    return replace(plan, delay_seeds=min(plan.delay_seeds, LONG_SEEDS), learning_seeds=0, tasks=tasks)


def long_store(store: ResultStore, factor: int = LONG_FACTOR) -> ResultStore:
    """The store of the long runs, in the same folder."""
    return ResultStore(store.folder, factor * store.rounds)


def to_run_long(plan: ReproductionPlan, store: ResultStore) -> Sequence[Experiment]:
    """Experiments whose long runs are missing."""
    wanted, kept = long_plan(plan), long_store(store)
    if not wanted.tasks or "fig-regret" not in plan.figures:
        return []
    experiments = [Experiment(FASHION_MNIST, policy) for policy in LONG_POLICIES]
    return [item for item in experiments if kept.missing("schedule", item, wanted.scheduled_seeds)]


def compute_long_runs(plan: ReproductionPlan, store: ResultStore, progress: Callable[[str], None]) -> None:
    """Compute the missing long runs; ``progress`` is called with the name of each finished experiment."""
    for experiment in to_run_long(plan, store):
        long_store(store).schedule(experiment, long_plan(plan).scheduled_seeds)
        progress(experiment.name)

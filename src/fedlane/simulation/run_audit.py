"""The audit of a run: an attack on uploads as the run's clients made them, and the power of that attack.

The run's ledger holds each kind of client's sample rate, noise and number of uploads. One upload per trial is attacked:
at the same cost, trials of several uploads refute less, because there are fewer of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedlane.learning.optimization import Optimization
from fedlane.privacy import Terms, mechanism_of, spent
from fedlane.privacy.accountant import exceeds_budget
from fedlane.privacy.audit_statistics import AuditResult, SamplingResult, audit_sampling, largest_bound
from fedlane.privacy.run_ledger import NAME as LEDGER
from fedlane.privacy.run_ledger import RunAccounts
from fedlane.records import MechanismSpec
from fedlane.scenario import Scenario
from fedlane.simulation.audit import AuditPlan, audit, drawn_samples
from fedlane.simulation.folder_files import read_summary
from fedlane.simulation.loss_audit import with_noise_times
from fedlane.simulation.run_agreement import read_agreeing_accounts
from fedlane.validate import InputError

MAX_KINDS = 3
"""Number of kinds of clients that are attacked: those whose uploads show most."""
MAX_BATCH = 16
"""Larger batches are attacked with this batch size and the same sample rate, which saves time."""
MAX_CLIP_NORM = 1.0
"""Larger clip norms are attacked at this one, which the canary's gradient reaches. Noise is in multiples of it."""
TESTED_RATES = 0.05, 0.5
"""Range of rates at which samples are tested; the test needs records that are drawn often enough."""


@dataclass(frozen=True)
class AuditTarget:
    """A kind of clients of a run, and the attack on one of their uploads.

    Attributes:
        terms: Their terms, from the run's ledger.
        clients: Number of such clients, over all seeds.
        uploads: Largest number of uploads that one of them made.
        batch_size: The batch size of the run.
        plan: The attack. Its epsilon is the claim for one upload.
        spec: The mechanism that is attacked.
    """

    terms: Terms
    clients: int
    uploads: int
    batch_size: int
    plan: AuditPlan
    spec: MechanismSpec

    @property
    def accounted(self) -> float:
        """The epsilon that is accounted for the uploads that were made, with the label histogram."""
        return spent(self.terms, self.uploads).epsilon

    @property
    def exceeded(self) -> bool:
        """Whether the uploads exceed the agreed budget."""
        return exceeds_budget(self.terms, self.uploads, self.accounted)


@dataclass(frozen=True)
class TargetAudit:
    """Result of the attack on one kind of clients, with its power.

    Attributes:
        target: What was attacked.
        result: The lower bound on epsilon.
        samples: The test of Poisson samples; None for a mechanism that draws fixed batches.
        largest: The largest epsilon that an attack can show with this number of trials.
        half_noise: The same attack on a mechanism with half the noise; None if the claim itself is refuted.
    """

    target: AuditTarget
    result: AuditResult
    samples: SamplingResult | None
    largest: float
    half_noise: AuditResult | None

    @property
    def refuted(self) -> bool:
        """Whether the claim, or Poisson sampling, is refuted."""
        return self.result.flagged or (self.samples is not None and self.samples.flagged)

    @property
    def refutes_half_noise(self) -> bool:
        """Whether the attack would have refuted the claim if there were only half the noise."""
        return self.half_noise is None or self.half_noise.flagged


def run_targets(folder: Path, **options: object) -> tuple[Scenario, list[AuditTarget]]:
    """Return a run's scenario, and its most exposed kinds of clients, at most `MAX_KINDS`, with the attacks on them.

    Nothing of the run is executed: a user's model is not imported.

    Args:
        folder: The run folder of a simulation.
        options: Fields of `AuditPlan`: trials, confidence, seed, device and pixels.

    Raises:
        InputError: The folder is not that of a run that made private uploads, or its files do not agree.
    """
    scenario, accounts = _read(folder)
    batches = scenario.per_client(scenario.learning.batch_size)
    options = {"loss_noise": scenario.privacy.loss_noise if _reports_losses(folder) else None, **options}
    kinds: dict[tuple[int, int], list[int]] = {}
    for (replica, client), kind in np.ndenumerate(accounts.kind):
        made = int(accounts.uploads[replica, client])
        kinds.setdefault((int(kind), int(batches[client])), []).append(made)
    targets = [
        _target(scenario, accounts.terms[kind], batch, uploads, options)
        for (kind, batch), uploads in kinds.items()
        if max(uploads) > 0
    ]
    if not targets:
        raise InputError(f"no client of {folder} has made an upload, so there is nothing to audit")
    return scenario, sorted(targets, key=_exposure, reverse=True)[:MAX_KINDS]


def audit_target(target: AuditTarget, progress: Callable[[int], None] | None = None) -> TargetAudit:
    """Attack one kind of clients, and then the same mechanism with half the noise.

    Args:
        target: What to attack.
        progress: Called with the number of trials done so far, of twice as many as the plan has.
    """
    plan, spec = target.plan, target.spec
    result = audit(plan, spec, progress)
    half_noise = None
    if not result.flagged:
        weaker = with_noise_times(spec, 0.5)
        later = None if progress is None else lambda done: progress(plan.trials + done)
        half_noise = audit(plan, weaker, later)
    samples = None
    if spec.sampling == "poisson":
        rate = float(np.clip(target.terms.sample_rate, *TESTED_RATES))
        chosen = drawn_samples(plan.seed, "poisson", rate, plan.device)
        samples = audit_sampling(chosen, rate, plan.confidence)
    gaussian = result.epsilon_low_gaussian is not None
    largest = largest_bound(result.trials, plan.delta, plan.confidence, gaussian=gaussian)
    return TargetAudit(target, result, samples, largest, half_noise)


def _read(folder: Path) -> tuple[Scenario, RunAccounts]:
    if not folder.is_dir():
        raise InputError(f"run folder {folder} does not exist")
    file = folder / "scenario.toml"
    if not file.is_file():
        raise InputError(f"{folder} is not a run folder: scenario.toml is missing")
    scenario = Scenario.load(file.absolute())
    if not mechanism_of(scenario.privacy.mechanism).has_ledger:
        raise InputError(f"run {folder} has the mechanism '{scenario.privacy.mechanism}', which makes no privacy claim")
    if not (folder / LEDGER).is_file():
        raise InputError(f"{folder} has no ledger: only simulated runs can be audited (real clients keep their own)")
    return scenario, read_agreeing_accounts(folder, scenario)


def _reports_losses(folder: Path) -> bool:
    """Return whether the clients of a run reported losses, according to its summary, which every saved run has."""
    if not (folder / "summary.json").is_file():
        return False
    privacy = read_summary(folder / "summary.json").get("privacy")
    return isinstance(privacy, dict) and privacy.get("losses") is not None


def _target(
    scenario: Scenario, terms: Terms, batch_size: int, uploads: list[int], options: dict[str, object]
) -> AuditTarget:
    mechanism = mechanism_of(terms.mechanism)
    poisson, certain = mechanism.sampling == "poisson", terms.sample_rate >= 1
    batch = min(batch_size, MAX_BATCH)
    records = batch if certain and poisson else max(batch + 1, round(batch / terms.sample_rate))
    plan = AuditPlan(
        mechanism=terms.mechanism,
        epsilon=mechanism.epsilon_per_upload(terms),
        delta=terms.delta,
        records=records,
        batch_size=batch,
        local_iterations=terms.local_iterations,
        learning_rate=scenario.learning.learning_rate,
        local=Optimization(momentum=scenario.learning.momentum, proximal=scenario.learning.proximal).local,
        clip_norm=min(scenario.learning.clip_norm, MAX_CLIP_NORM),
        blank_records=poisson and not certain,
    )
    spec = MechanismSpec.simple(
        np.full((2, 1), records),
        batch_size=batch,
        local_iterations=terms.local_iterations,
        clip_norm=plan.clip_norm,
        step_noise=terms.step_noise,
        upload_noise=terms.upload_noise,
        sampling=mechanism.sampling,
    )
    if poisson:
        spec = replace(spec, sample_rate=np.full((2, 1), terms.sample_rate))
    plan = replace(plan, **options)  # type: ignore[arg-type]
    return AuditTarget(terms, len(uploads), max(uploads), batch_size, plan, plan.with_released_losses(spec))


def _exposure(target: AuditTarget) -> tuple[bool, float]:
    """Return whether there are more uploads than agreed, and a rough measure of what they show.

    The measure is q sqrt(uploads) over the noise.
    """
    terms = target.terms
    noise = mechanism_of(terms.mechanism).noise(terms.step_noise, terms.upload_noise)
    return target.uploads > terms.max_uploads, float(terms.sample_rate * np.sqrt(target.uploads) / noise)

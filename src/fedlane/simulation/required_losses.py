"""Policies that require losses: the mechanism of their runs, and what users are told."""

from dataclasses import replace

from fedlane.privacy.loss_release import with_losses
from fedlane.privacy.mechanisms import mechanism_of
from fedlane.records import DelayDistributions, MechanismSpec
from fedlane.scheduling.policy import BatchPolicy, requires_losses
from fedlane.simulation.setup import Setup


def with_required_losses(policy: BatchPolicy, setup: Setup) -> Setup:
    """Return the setup of a run whose clients report their losses if the policy requires them.

    Raises:
        InputError: ``privacy.loss_noise`` is too small for the noise of a step.
    """
    if not requires_losses(policy):
        return setup
    privacy = setup.scenario.privacy
    return replace(setup, mechanism=with_losses(setup.mechanism, privacy.loss_clip, privacy.loss_noise))


def run_caution(policy: BatchPolicy, distributions: DelayDistributions | None, mechanism: MechanismSpec) -> str | None:
    """Return one line that a user should know about a policy in this run, or None.

    Args:
        policy: The policy.
        distributions: The true delay distributions if the policy requires them, otherwise None.
        mechanism: The mechanism; a policy that sees exact losses is said to see what it does not protect.
    """
    lines = [] if distributions is None else [policy.caution(distributions)]
    query = mechanism.loss_query
    if query is not None and not query.protected and mechanism_of(mechanism.name).has_ledger:
        lines.append(
            f"policy {policy.name} sees exact losses, which the mechanism '{mechanism.name}' does not protect and its "
            "epsilon does not cover"
        )
    return "; ".join(line for line in lines if line is not None) or None

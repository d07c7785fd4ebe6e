"""The 34 claims of the paper's evaluation, judged on stored results.

A claim is a list of cases, each with one value per seed; comparisons of policies or settings are paired by seed. A case
holds if the whole 95% Student interval of its mean lies on the claimed side of its bound, which is 0 unless the claim
has another criterion, and it is refuted if the interval lies wholly on the other side. `verdicts` says how the cases of
all claims and readings decide the verdicts: holds, refuted, not decided, depends on the reading. Readings are explained
in docs/reading-the-paper.md: 11 is the scale of the exploration bonus, 14 the value of V, 12 the weight of the queues,
15 the benchmark of regret.

Accuracy is compared by its mean over the tested rounds, because the paper's claims are about whole curves. Delays are
compared relative to the other side's mean, so that both tasks have the same scale.
"""

from fedlane.experiments.claims.against_baselines import (
    accuracy_over_baselines,
    better_pairs,
    delay_over_baselines,
    interference,
    keeps_improving,
    pareto,
    ucb_below_random,
)
from fedlane.experiments.claims.comparisons import FIRST_STEP, KINDS, STEPS
from fedlane.experiments.claims.evidence import Evidence
from fedlane.experiments.claims.selection import (
    depends_on_v,
    follows_quota,
    more_rounds,
    quota_order,
    selection_trade_off,
)
from fedlane.experiments.claims.theory import approaches, log_regret, long_deadline, loses_little, stable
from fedlane.experiments.claims.trade_off import (
    better_than_random,
    delay_order,
    first_step,
    gap_shrinks,
    leakage,
    no_rise,
    rise_together,
    saturates,
    trade_off,
    worse_than,
)
from fedlane.experiments.claims.verdicts import Claim, Verdict, table, verdicts_on
from fedlane.experiments.labels import GMBA_POLICIES, OM_AND_RANDOM, OM_POLICIES, PAPER_POLICIES
from fedlane.experiments.reproduce import ReproductionPlan
from fedlane.experiments.store import ResultStore

__all__ = ["CLAIMS", "Claim", "Verdict", "judge", "table"]

_SHARE = "reduction of the cumulative delay, relative to the other's mean"
_GAP = "difference in accuracy, mean over rounds"
_V_ORDERED = [(f"{kind}:V={high}", f"{kind}:V={low}") for kind in KINDS for low, high in STEPS]
CLAIMS = (
    Claim("Fig. 2", "OM and GMBA are more accurate than Random at every V", _GAP, better_than_random("base")),
    Claim("Fig. 2", "The gap of claim 1 shrinks with t", "gap in the first quarter minus gap in the last", gap_shrinks),
    Claim("Fig. 2", "Accuracy saturates", "gain in accuracy in the last quarter", saturates),
    Claim("Fig. 2", "Delay at V=100 < V=10 < V=1", _SHARE, delay_order(False)),
    Claim(
        "Fig. 2",
        "The quota shortfall rises as delay falls with V",
        "rise of the shortfall, or relative fall of the delay",
        trade_off,
    ),
    Claim("Fig. 2", "Accuracy does not rise with V", _GAP, no_rise),
    Claim("Fig. 2", "Accuracy at V=1 > V=10", _GAP, first_step),
    Claim("Fig. 2", "Delay at V=1 > V=10", _SHARE, delay_order(False, steps=(FIRST_STEP,))),
    Claim("Fig. 2", "Across V, accuracy and round time rise together", "correlation over V", rise_together),
    Claim("Fig. 3", "As claim 1, at epsilon 0.8 and b = 10", _GAP, better_than_random("private")),
    Claim("Fig. 3", "As claim 4, at epsilon 0.8 and b = 10", _SHARE, delay_order(False, "private")),
    Claim("Fig. 3", "The largest leakage by formula (6) is 12.05", "leakage (epsilon)", leakage),
    Claim(
        "Fig. 3", "Accuracy is below Fig. 2's for each policy", _GAP, worse_than("private", (*PAPER_POLICIES, "random"))
    ),
    Claim("Fig. 3", "The cause is epsilon: the same holds at equal b", _GAP, worse_than("epsilon-0.8", OM_AND_RANDOM)),
    Claim(
        "Fig. 4",
        "OM completes more rounds than GMBA in a time budget",
        "gain in rounds, relative to GMBA's",
        more_rounds(list(zip(OM_POLICIES, GMBA_POLICIES, strict=True))),
    ),
    Claim(
        "Fig. 4",
        "Rounds in a time budget rise with V",
        "gain in rounds, relative to the lower V's",
        more_rounds(_V_ORDERED),
    ),
    Claim("Fig. 4", "The mean round time falls with V", _SHARE, delay_order(True)),
    Claim(
        "Fig. 5", "With non-uniform epsilon, quotas rise with the client's index", "difference in quotas", quota_order
    ),
    Claim(
        "Fig. 5",
        "Selection follows the quotas",
        "correlation over clients, or its excess over equal epsilon",
        follows_quota,
    ),
    Claim("Fig. 5", "Selection depends on V", "difference in the spread of shares", depends_on_v),
    Claim("Fig. 5", "As claim 5, for OM", "rise of the shortfall, or relative fall of the delay", selection_trade_off),
    Claim("Fig. 6", "OM and GMBA are more accurate than every baseline", _GAP, accuracy_over_baselines),
    Claim("Fig. 6", "The estimates keep improving", "fall of the error, or of the regret per round", keeps_improving),
    Claim("Fig. 6", "Single-UCB exploits statistics: delay below Random's", _SHARE, ucb_below_random),
    Claim(
        "Fig. 6",
        "Single-UCB fails through client-specific interference",
        "change of its gap, relative to Random's delay",
        interference,
    ),
    Claim("Fig. 7", "OM and GMBA have a lower delay than every baseline", _SHARE, delay_over_baselines(True)),
    Claim("Fig. 7", "The gap of claim 26 grows with t", f"{_SHARE}, second half", delay_over_baselines(False)),
    Claim("Fig. 7", "OM and GMBA assign better pairs", "difference in mean reward", better_pairs),
    Claim(
        "Fig. 7",
        "OM and GMBA have the better trade-off of time and accuracy",
        "reduction of the time, relative to the other's mean",
        pareto,
    ),
    Claim("Section V", "GMBA approaches OM as t grows", "fall of OM's lead in reward per round", approaches),
    Claim("Abstract", "GMBA loses little and decides faster", "loss, or share of time saved", loses_little),
    Claim("Conclusion", "A deadline that all meet gives the best accuracy", _GAP, long_deadline),
    Claim("Theorem 3", "Queues are stable", "largest growth of a queue per round", stable),
    Claim(
        "Abstract", "Regret grows as log T", "excess of the regret's last doubling, relative to mu* T / 4", log_regret
    ),
)


def judge(plan: ReproductionPlan, store: ResultStore) -> list[Verdict]:
    """Judge all claims, in order, on the results that the store contains for the plan."""
    return verdicts_on(CLAIMS, Evidence(plan, store))

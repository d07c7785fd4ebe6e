"""From stored cells to the panels of every figure."""

from collections.abc import Callable, Sequence

import numpy as np

from fedlane.experiments.regret_and_timing import complexity_panels, regret_panels
from fedlane.experiments.reproduce import BASELINES, BUDGETS, PAPER, SENSITIVITY, ReproductionPlan
from fedlane.experiments.store import Experiment, ResultStore
from fedlane.learning.schedule import Curves
from fedlane.privacy.paper import PaperLeakage, composed_gaussian, formula_6
from fedlane.records import FloatArray
from fedlane.report.paper_figures import Line, Panel
from fedlane.simulation.setup import prepare

TASK_NAMES = {"fashion-mnist": "Fashion-MNIST, MLP", "cifar10": "CIFAR-10, CNN"}
LOOKS = {
    **{policy: (number % 3, number // 3) for number, policy in enumerate(PAPER)},
    "random": (6, 0),
    "round-robin": (6, 1),
    "single-ucb:exploration=0.01": (4, 0),
    "single-ucb:exploration=0.1": (4, 1),
    "lane": (3, 0),
    "genie": (3, 1),
}
"""Colour and dash of every policy, the same in all figures."""


def label(policy: str) -> str:
    """A policy's name as the paper has it."""
    kind, _, rest = policy.partition(":")
    name = {"mamab-om": "OM", "mamab-gmba": "GMBA", "single-ucb": "Single-UCB", "round-robin": "Round Robin"}.get(
        kind, "Random" if kind == "random" else kind
    )
    rest = rest.replace("exploration=", "").replace(",quota_slack=0.125", "").replace("queue_weight=", "")
    return f"{name} {rest}".strip()


class Drawer:
    """Panels from what a store holds for a plan."""

    def __init__(self, plan: ReproductionPlan, store: ResultStore) -> None:
        self.plan, self.store = plan, store

    def over_seeds(
        self, cell: Experiment, of: Callable[[Experiment, int], FloatArray], learned: bool = False
    ) -> FloatArray:
        """(S, ...): a figure of each seed that is there."""
        seeds = range(self.plan.learning_seeds) if learned else self.plan.seeds(cell)
        return np.stack([of(cell, seed) for seed in seeds])

    def delay(self, cell: Experiment, seed: int) -> FloatArray:
        """(T,): accumulated delay."""
        return np.cumsum(self.store.result(cell, seed).delay_s)

    def curves(self, cell: Experiment, seed: int) -> Curves:
        """What one seed learned."""
        learned = self.store.result(cell, seed).learned
        assert learned is not None
        return learned

    def accuracy(self, cell: Experiment, seed: int) -> FloatArray:
        """(K,): accuracy where it was tested."""
        return self.curves(cell, seed).accuracy[0]

    def _line(
        self, cell: Experiment, of: Callable[[Experiment, int], FloatArray], x: FloatArray, learned: bool = False
    ) -> Line:
        colour, dash = LOOKS.get(cell.policy, (5, 0))
        return Line(x, self.over_seeds(cell, of, learned), colour, dash)

    def accuracy_panel(self, task: str, policies: Sequence[str], setting: str, reading: str = "calibrated") -> Panel:
        cells = [Experiment(task, policy, setting, _reading(policy, reading)) for policy in policies]
        lines = {}
        for cell in cells:
            tested = self.curves(cell, 0).round + 1
            lines[label(cell.policy)] = self._line(cell, self.accuracy, tested.astype(np.float64), learned=True)
        return Panel(_title(task, reading), "round", "test accuracy", lines)

    def delay_panel(self, task: str, policies: Sequence[str], setting: str, reading: str = "calibrated") -> Panel:
        x = np.arange(1, self.store.rounds + 1, dtype=np.float64)
        lines = {
            label(policy): self._line(Experiment(task, policy, setting, _reading(policy, reading)), self.delay, x)
            for policy in policies
        }
        return Panel(_title(task, reading), "round", "accumulated delay (s)", lines)

    def fig_v(self) -> list[Panel]:
        panels = []
        for task in self.plan.tasks:
            panels += [
                self.accuracy_panel(task, (*PAPER, "random", "lane"), "base"),
                self.delay_panel(task, (*PAPER, "random", "lane"), "base"),
                self.accuracy_panel(task, (*PAPER, "random"), "base", "literal"),
                self.delay_panel(task, (*PAPER, "random"), "base", "literal"),
            ]
        return panels

    def fig_private(self) -> list[Panel]:
        policies, panels = (*PAPER, "random", "lane"), []
        for task in self.plan.tasks:
            panels += [
                self.accuracy_panel(task, policies, "private"),
                self.delay_panel(task, policies, "private"),
                self.accuracy_panel(task, (*PAPER, "random"), "private", "literal"),
                self.delay_panel(task, (*PAPER, "random"), "private", "literal"),
            ]
        return [*panels, *(leakage_panel(task, self.store.rounds) for task in self.plan.tasks)]

    def fig_accuracy(self) -> list[Panel]:
        return [self.accuracy_panel(task, (*PAPER, *BASELINES, "lane", "genie"), "base") for task in self.plan.tasks]

    def fig_delay(self) -> list[Panel]:
        return [self.delay_panel(task, (*PAPER, *BASELINES, "lane", "genie"), "base") for task in self.plan.tasks]

    def fig_rounds(self) -> list[Panel]:
        """Aggregation rounds within a total time budget."""
        panels = []
        for task in self.plan.tasks:
            whole = self.over_seeds(Experiment(task, "random"), self.delay)[:, -1].mean()
            budgets = np.round(np.array(BUDGETS) * whole, -1)
            lines = {}
            for policy in (*PAPER, "random", "lane"):
                colour, dash = LOOKS[policy]
                delays = self.over_seeds(Experiment(task, policy), self.delay)
                counts = np.stack([np.searchsorted(row, budgets, side="right") for row in delays]).astype(np.float64)
                lines[label(policy)] = Line(budgets, counts, colour, dash)
            panels.append(Panel(TASK_NAMES[task], "time budget (s)", "aggregation rounds", lines))
        return panels

    def fig_selection(self) -> list[Panel]:
        """Share of rounds in which each client was chosen, beside its quota."""
        panels = []
        for task in self.plan.tasks:
            for setting, title in (("base", "equal epsilon"), ("nonuniform", "non-uniform epsilon")):
                lines, quotas = {}, {}
                for policy in (*PAPER[:3], "lane"):
                    cell = Experiment(task, policy, setting)
                    colour, dash = LOOKS[policy]
                    shares = self.over_seeds(cell, lambda c, s: self.store.result(c, s).share("assigned"))
                    lines[label(policy)] = Line(np.arange(1.0, shares.shape[1] + 1), shares, colour, dash)
                    if policy == PAPER[0]:
                        quotas["quota"] = self.over_seeds(cell, lambda c, s: self.store.result(c, s).quota).mean(axis=0)
                panels.append(
                    Panel(f"{TASK_NAMES[task]}, {title}", "client", "share of rounds chosen", lines, True, quotas)
                )
        return panels

    def fig_regret(self) -> list[Panel]:
        return regret_panels(self.plan, self.store)

    def fig_convergence(self) -> list[Panel]:
        from fedlane.experiments.theorems import convergence_panels  # late: it uses the looks of this module

        return convergence_panels(self.plan, self.store)

    def fig_complexity(self) -> list[Panel]:
        return complexity_panels()

    def fig_queues(self) -> list[Panel]:
        """The largest queue over time: the additive rule's livelock and its cure."""
        if "fashion-mnist" not in self.plan.tasks:
            return []
        x = np.arange(1.0, self.store.rounds + 1)
        lines = {}
        for number, cell in enumerate(self.plan.figures["fig-queues"].scheduled):
            values = self.over_seeds(cell, lambda c, s: self.store.result(c, s).queue.max(axis=1))
            lines[label(cell.policy)] = Line(x, values, number * 2, 0)
        return [Panel(TASK_NAMES["fashion-mnist"], "round", "largest virtual queue", lines)]

    def fig_sensitivity(self) -> list[Panel]:
        """Final accuracy and delay along each axis, the base setting in its place."""
        if "fashion-mnist" not in self.plan.tasks:
            return []
        base = {"tau": 5.0, "deadline": 1.0, "clients": 10.0, "channels": 4.0, "degree": 0.8}
        names = {
            "tau": "local iterations",
            "deadline": "deadline, times the preset's",
            "clients": "clients",
            "channels": "channels",
            "degree": "degree of non-IID",
        }
        panels = []
        for axis, middle in base.items():
            points = sorted([float(s.split("-")[1]) for s in SENSITIVITY if s.startswith(f"{axis}-")] + [middle])
            settings = ["base" if point == middle else f"{axis}-{point:g}" for point in points]
            for what, of in (("test accuracy", self._final), ("accumulated delay (s)", self._total)):
                lines = {}
                for policy in ("lane", "mamab-om:V=100", "random"):
                    cells = [Experiment("fashion-mnist", policy, setting) for setting in settings]
                    values = np.stack([self.over_seeds(cell, of, learned=True) for cell in cells], axis=1)
                    lines[label(policy)] = Line(np.array(points), values, *LOOKS[policy])
                panels.append(Panel("", names[axis], what, lines))
        return panels

    def _final(self, cell: Experiment, seed: int) -> FloatArray:
        return self.accuracy(cell, seed)[-1]

    def _total(self, cell: Experiment, seed: int) -> FloatArray:
        return self.delay(cell, seed)[-1]


def leakage_panel(task: str, rounds: int) -> Panel:
    """A client's leakage against its uploads at epsilon 0.8 and b = 10: formula (6), and the tight figures."""
    scenario = Experiment(task, "random", "private").scenario()
    setup = prepare(scenario, [0])
    epsilon, delta = float(scenario.epsilon[0]), float(scenario.per_client(scenario.privacy.delta)[0])
    spec = setup.mechanism
    noise, rate = float(spec.upload_noise[0, 0]), float(spec.sample_rate[0, 0])
    uploads = np.unique(np.geomspace(1, rounds, 9).round()).astype(np.int64)
    noised = PaperLeakage(noise, rate, spec.local_iterations)
    lines = {
        "formula (6)": formula_6(epsilon, delta, uploads),
        "Gaussian rounds, composed tightly": [composed_gaussian(epsilon, delta, int(count)) for count in uploads],
        "the paper's noise, at least": [noised.epsilon(delta, int(count)) for count in uploads],
    }
    drawn = {
        name: Line(uploads.astype(np.float64), np.array(values, np.float64)[None], 5 + number % 2, number)
        for number, (name, values) in enumerate(lines.items())
    }
    title = f"{TASK_NAMES[task]}\n250 uploads by formula (6): {float(formula_6(epsilon, delta, 250)):.2f}"
    return Panel(title, "uploads of a client", f"epsilon at delta {delta:g}", drawn, log=True)


def _reading(policy: str, reading: str) -> str:
    """Only the paper's own policies have a literal variant."""
    return reading if policy.startswith("mamab") else "calibrated"


def _title(task: str, reading: str) -> str:
    return TASK_NAMES[task] + (" (literal exploration)" if reading == "literal" else "")

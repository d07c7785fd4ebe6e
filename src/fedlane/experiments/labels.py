"""The policies and tasks of the paper's evaluation: their groups, their names and how they are drawn."""

FASHION_MNIST = "fashion-mnist"
BOTH_TASKS = (FASHION_MNIST, "cifar10")
TASK_NAMES = {"fashion-mnist": "Fashion-MNIST, MLP", "cifar10": "CIFAR-10, CNN"}
TASK_LETTERS = {"fashion-mnist": "F", "cifar10": "C"}
"""Abbreviations of the tasks in the table of claims."""

OM_POLICIES = ("mamab-om:V=1", "mamab-om:V=10", "mamab-om:V=100")
GMBA_POLICIES = ("mamab-gmba:V=1", "mamab-gmba:V=10", "mamab-gmba:V=100")
PAPER_POLICIES = (*OM_POLICIES, *GMBA_POLICIES)
LARGEST_V_POLICIES = ("mamab-om:V=100", "mamab-gmba:V=100")
UCB_POLICIES = ("single-ucb:beta=0.01", "single-ucb:beta=0.1")
UCB_INDEX_POLICIES = ("ucb-index:exploration=0.01", "ucb-index:exploration=0.1")
"""The other reading of the paper's Single-UCB (reading 14): shown, but not judged."""
BASELINES = ("random", "round-robin", *UCB_POLICIES)
V_FIGURE_POLICIES = (*PAPER_POLICIES, "random", "lane")
ALL_POLICIES = (*PAPER_POLICIES, *BASELINES, *UCB_INDEX_POLICIES, "lane", "genie")
OM_AND_RANDOM = ("mamab-om:V=100", "random")
REPRESENTATIVE_POLICIES = ("lane", *OM_AND_RANDOM)
"""Policies of the figures that need many runs per policy (convergence and sensitivity)."""

LINE_STYLES = {
    **{policy: (colour, 0) for colour, policy in enumerate(OM_POLICIES)},
    **{policy: (colour, 1) for colour, policy in enumerate(GMBA_POLICIES)},
    "random": (6, 0),
    "round-robin": (6, 1),
    "single-ucb:beta=0.01": (4, 0),
    "single-ucb:beta=0.1": (4, 1),
    "ucb-index:exploration=0.01": (5, 0),
    "ucb-index:exploration=0.1": (5, 1),
    "lane": (3, 0),
    "genie": (3, 1),
}
"""Colour and dash of each policy, the same in all figures (indices into the palette and the dash patterns)."""

_PAPER_NAMES = {
    "mamab-om": "OM",
    "mamab-gmba": "GMBA",
    "single-ucb": "Single-UCB",
    "ucb-index": "UCB index",
    "round-robin": "Round Robin",
    "random": "Random",
}
_ONE_PARAMETER = frozenset({"single-ucb", "ucb-index", "cs-ucb-q"})
"""Policies with a single parameter, whose name the label leaves out."""


def policy_label(policy: str) -> str:
    """Name of a policy as the paper writes it, with its parameters."""
    kind, _, parameters = policy.partition(":")
    if kind in _ONE_PARAMETER:
        parameters = parameters.partition("=")[2]
    parameters = parameters.replace("quota_slack=", "slack ").replace("queue_weight=", "").replace(",", ", ")
    return f"{_PAPER_NAMES.get(kind, kind)} {parameters}".strip()


def task_title(task: str, reading: str) -> str:
    """Title of a panel: the task, and the reading if it is the literal one."""
    return TASK_NAMES[task] + (" (literal exploration)" if reading == "literal" else "")

"""The audit against the GPU's kernels: it must pass them as they are, and refute each of them with an error put in.

python benchmarks/gpu_mutations.py          # needs a GPU, and dp-accounting beside PyTorch and NumPy

Each mutation changes one line of a copy of the sources. Two attacks try to notice it: `audit` (uploads with and without
a record) and `audit_clipping` (a search for weights under which a record exceeds the clip norm).
"""

import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).parent.parent / "src"
TRIALS = 20_000
AT_ONCE = 6


class Mutation(NamedTuple):
    """A line of a kernel, and what takes its place."""

    name: str
    model: str
    file: str
    old: str
    new: str


_NOISE, _TWO, _NET, _CONV = (f"learning/fused/{name}.py" for name in ("noise", "two_layer", "network", "convolution"))
_DRAWN = "step = tl.load(move + at, mask=inside) + scale * (cosine if part == 0 else sine)"
_CLIP = "        factor *= clip_norm / tl.maximum(tl.sqrt(norm), clip_norm)\n"
_FACTOR = "factor = torch.where(finite, scale * (clip_norm / square.sqrt_().clamp_(min=clip_norm)), 0.0)"
_FIRST = "norm = tl.sum(gradient * gradient, 1) * (1.0 + tl.load(squares + record, mask=valid, other=0.0))"
_SECOND = "norm += tl.sum(error * error, 1) * (1.0 + tl.sum(active * active, 1))"
_NORMS = "for kept in passes:\n            parts"
_SUM = "tl.where(amount > 0, amount * tile, 0.0)"
_OF_NOISE = (
    ("no noise", _DRAWN, "step = tl.load(move + at, mask=inside)"),
    ("no noise in the second half of the weights", _DRAWN, _DRAWN.replace("else sine", "else 0.0 * sine")),
    ("half the noise", _DRAWN, _DRAWN.replace("scale *", "0.5 * scale *")),
    ("the same noise in every step", "first = tl.load(counter + row) * half", "first = tl.load(counter + row) * 0"),
)
MUTATIONS = (
    *(Mutation(name, model, _NOISE, old, new) for model in ("mlp", "cnn") for name, old, new in _OF_NOISE),
    Mutation("no clipping", "mlp", _TWO, _CLIP, ""),
    Mutation("first matrix left out of the norm", "mlp", _TWO, _FIRST, "norm = tl.sum(gradient * gradient, 1)"),
    Mutation("second matrix left out of the norm", "mlp", _TWO, _SECOND, "norm += tl.sum(error * error, 1)"),
    Mutation("no clipping", "cnn", _NET, _FACTOR, "factor = scale"),
    Mutation("convolutions left out of the norm", "cnn", _NET, _NORMS, _NORMS.replace("passes", "[]")),
    Mutation("dense layers left out of the norm", "cnn", _NET, "zip(self.dense, results, strict=True)]", "[]]"),
    Mutation("convolutions' sums not clipped", "cnn", _CONV, _SUM, "0.05 / 16 * tile"),
    Mutation("norm of the first tile only", "cnn", _CONV, "for part in range(parts):", "for part in range(1):"),
)  # fmt: skip


def attack(sources: Path, model: str) -> str:
    """Attack the kernels in ``sources``; return both findings as one line."""
    sys.path.insert(0, str(sources))
    package = types.ModuleType("fedlane.simulation")  # without what simulations need beside PyTorch
    package.__path__ = [str(sources / "fedlane" / "simulation")]
    sys.modules["fedlane.simulation"] = package
    from fedlane.simulation.audit import AuditPlan, audit, audit_samples
    from fedlane.simulation.clipping_audit import audit_clipping

    changes = {"pixels": 14, "local_iterations": 1, "model": "cnn"} if model == "cnn" else {}
    plan = AuditPlan(trials=TRIALS, device="cuda", **changes)  # type: ignore[arg-type]
    result, clipping = audit(plan), audit_clipping(model, device="cuda")
    samples = audit_samples(plan)
    flags = result.flagged, clipping.simulated > clipping.simulated_limit, samples.flagged
    said = ["caught" if flag else "passed" for flag in flags]
    bound = f"epsilon at least {result.epsilon_low:.2f} of {result.claim:g}"
    return f"{said[0]}, {bound} | {said[1]}, largest {clipping.simulated:.6g} | {said[2]}"


def mutated(mutation: Mutation | None, folder: Path) -> Path:
    """Copy the sources to a folder, and put a mutation in."""
    sources = folder / "src"
    shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__"))
    if mutation is not None:
        file = sources / "fedlane" / mutation.file
        text = file.read_text()
        if text.count(mutation.old) != 1:
            raise SystemExit(f"{mutation.file} has {text.count(mutation.old)} times: {mutation.old}")
        file.write_text(text.replace(mutation.old, mutation.new))
    return sources


def outcomes() -> Iterator[tuple[str, str]]:
    """Yield the outcome of each mutation, after the kernels as they are."""
    tried: list[tuple[Mutation | None, str]] = [(None, "mlp"), (None, "cnn")]
    tried += [(mutation, mutation.model) for mutation in MUTATIONS]

    def outcome(entry: tuple[Mutation | None, str]) -> tuple[str, str]:
        mutation, model = entry
        with tempfile.TemporaryDirectory() as folder:
            sources = mutated(mutation, Path(folder))
            command = [sys.executable, __file__, str(sources), model]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines() or done.stderr.splitlines() or [f"exit {done.returncode}"]
        return f"{model}: {'as it is' if mutation is None else mutation.name}", lines[-1]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(outcome, tried)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(attack(Path(sys.argv[1]), sys.argv[2]))
    else:
        print("kernel | audit of uploads | search for weights | test of samples")
        for name, line in outcomes():
            print(f"{name} | {line}", flush=True)

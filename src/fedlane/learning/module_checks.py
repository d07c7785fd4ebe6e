"""Trial of a user's module before it is trained: its inputs and scores, its gradients, and what it does to a batch."""

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from fedlane.learning.dataset_records import CLASSES, Objective
from fedlane.learning.losses import trial_targets
from fedlane.learning.model_interface import Batch
from fedlane.learning.module_layers import WITHOUT_PRIVACY
from fedlane.learning.module_model import ModuleModel
from fedlane.validate import LARGEST_CLIP_NORM, InputError, first_line

log = logging.getLogger("fedlane.learning")

TEST_BATCH = 500
"""Largest number of samples that are evaluated together where the scores depend on it."""
TOLERANCE = 1e-3
"""Largest relative difference between the scores of a record alone and in a batch that is due to rounding."""


def checked_module(
    make: Callable[[], torch.nn.Module],
    input_shape: Sequence[int],
    classes: int,
    *,
    per_record: bool,
    label: str | None = None,
    tokens: int | None = None,
    objective: Objective = CLASSES,
) -> ModuleModel:
    """Return a user's module as a model, after trying it on two random inputs.

    Args:
        make: Class of the module, or a function that returns it.
        input_shape: Shape of one input: (planes, height, width) for images, or any other.
        classes: Number of classes, or of target values, M.
        per_record: Whether every record needs a gradient of its own, as clipping does.
        label: The model as error messages name it; by default, the name of its class.
        tokens: Size of the vocabulary where inputs are tokens; None where they are numbers.
        objective: What is learned.

    Raises:
        InputError: The module does not accept the inputs, does not score all classes, or cannot be trained.
    """
    model = ModuleModel(make, per_record=per_record, objective=objective)
    label = label or f"model {type(model.module).__name__}"
    source = torch.Generator().manual_seed(0)
    x = torch.rand(2, *stored_shape(input_shape), generator=source)
    if tokens is not None:
        x = (x * tokens).long().clamp_(max=tokens - 1)
    weights = model.initial(0)
    # A last layer that starts at 0 would hide what the others do.
    weights[: model.trained] += 0.05 * torch.randn(model.trained, generator=source)
    _check_scores(model, label, input_shape, classes, weights, x)
    model.check_constants()
    targets = trial_targets(objective, classes)
    if per_record:
        _check_gradients(model, label, weights, x, targets)
        _choose_gradients(model, label, weights, x, targets)
        if _depends_on_batch(model.training_scores, weights, x):
            raise InputError(
                f"{label} mixes the records of a batch: a record's scores change with the others, which per-record "
                f"clipping does not allow; score every record by itself, or use {WITHOUT_PRIVACY}"
            )
    else:
        _choose_steps(model, label, weights, x, targets)
    if _depends_on_batch(lambda flat, inputs: model.logits(flat[None], inputs[None])[0], weights, x):
        model.test_batch = TEST_BATCH
    model.check_constants()
    return model


def stored_shape(input_shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of an input as stored for training: images have their planes last."""
    shape = tuple(input_shape)
    return (*shape[1:], shape[0]) if len(shape) == 3 else shape


def _check_scores(
    model: ModuleModel, label: str, input_shape: Sequence[int], classes: int, weights: Tensor, x: Tensor
) -> None:
    try:
        with torch.no_grad():
            shapes = {tuple(model.logits(weights[None], x[None])[0].shape)}
            shapes.add(tuple(model.training_scores(weights, x).shape))
    except InputError:
        raise
    except Exception as error:  # a user's code may raise anything
        images = len(input_shape) == 3
        inputs = "images of " + " x ".join(map(str, input_shape)) if images else f"inputs {tuple(input_shape)}"
        inputs = inputs if x.is_floating_point() else f"{len(x[0])} tokens"
        raise InputError(f"{label} does not accept {inputs}: {first_line(error)}") from error
    expected = model.objective.score_shape(classes)
    if shapes != {(2, *expected)}:
        wanted = f"{classes} scores" if len(expected) == 1 else f"scores of shape {expected}"
        raise InputError(f"{label} must return {wanted} per sample, got shape {max(shapes)[1:]}")


def _check_gradients(model: ModuleModel, label: str, weights: Tensor, x: Tensor, targets: Tensor) -> None:
    """Raise `InputError` unless the model has gradients of single records."""
    try:
        with _torch_func(model):
            model.descend(weights[None].clone(), Batch(x[None], targets[None]), 1.0, torch.ones(1, 2))
    except InputError:
        raise
    except Exception as error:
        reason = first_line(error)
        if "random" in reason:  # of torch.func, whose advice does not help here
            reason = f"it draws random numbers in forward (dropout?); remove them, or use {WITHOUT_PRIVACY}"
        raise InputError(f"{label} has no per-sample gradients: {reason}") from error


def _choose_gradients(model: ModuleModel, label: str, weights: Tensor, x: Tensor, targets: Tensor) -> None:
    """Use the fast path if it agrees with torch.func on the trial; otherwise log the layer that prevents it."""
    if model.slow_reason is None:
        model.slow_reason = _disagreement(model, weights, x, targets)
    if model.slow_reason is not None:
        _log_once(f"{label}: torch.func computes per-sample gradients, which is slower: {model.slow_reason}")


def _disagreement(model: ModuleModel, weights: Tensor, x: Tensor, targets: Tensor) -> str | None:
    """Return why the fast path cannot be used, or None if its steps are those of torch.func, clipped or not."""

    def moves() -> Tensor:
        steps = torch.zeros(2, model.size)
        for step, clip_norm in zip(steps, (1e-2, LARGEST_CLIP_NORM), strict=True):
            model.descend(weights[None], Batch(x[None], targets[None]), clip_norm, torch.ones(1, 2), step[None])
        return steps

    try:
        fast = moves()
    except Exception as error:  # a user's code may use its layers in any way
        return first_line(error)
    with _torch_func(model):
        slow = moves()
    if bool(((fast - slow).abs() <= TOLERANCE * slow.abs().amax(1, keepdim=True)).all()):
        return None
    return "a layer is not called as a whole, or its output is not used"


@contextmanager
def _torch_func(model: ModuleModel) -> Iterator[None]:
    """Let torch.func compute the gradients of single records."""
    reason, model.slow_reason = model.slow_reason, "torch.func is tried"
    try:
        yield
    finally:
        model.slow_reason = reason


@functools.cache
def _log_once(text: str) -> None:
    """Log a warning the first time that it occurs in this process."""
    log.warning(text)


def _choose_steps(model: ModuleModel, label: str, weights: Tensor, x: Tensor, targets: Tensor) -> None:
    """Without clipping: let whole batches through a module that cannot be trained record by record, and try that."""

    def step(records: int) -> None:
        batch = Batch(x[None, :records], targets[None, :records], seeds=torch.zeros(1, dtype=torch.int64))
        model.descend(weights[None].clone(), batch, None, torch.ones(1, records))

    if not model.whole_batch:
        try:
            step(2)
            model.whole_batch = _depends_on_batch(model.training_scores, weights, x)
        except InputError:
            raise
        except Exception:
            model.whole_batch = True
    try:
        step(2)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{label} cannot be trained: {first_line(error)}") from error
    try:
        step(1)
    except Exception:  # batch normalisation needs two values
        model.smallest_batch = 2


def _depends_on_batch(scores: Callable[[Tensor, Tensor], Tensor], weights: Tensor, x: Tensor) -> bool:
    """Return whether the scores of a record change with the other records of its batch."""
    with torch.no_grad():
        together = scores(weights, x)
        try:
            alone = torch.cat([scores(weights, record[None]) for record in x])
        except InputError:
            raise
        except Exception:
            return True
    return bool((alone - together).abs().max() > TOLERANCE * together.abs().max())

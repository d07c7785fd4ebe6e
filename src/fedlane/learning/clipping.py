"""How far the arithmetic of the fast path may exceed the clip norm.

`train_locally` computes norms and sums in float32, and on a GPU its products in TF32. `clipping_slack` bounds the
excess: neighbouring samples give sums at most C (1 + delta) apart, **if** the gradients of the other samples do not
change when a record joins. A batched product does not guarantee this (see `fedlane.learning.strict`, which real clients
use), so the bound describes simulated clients, whose server is not hostile.

Derivation. Let u = 2^-24, gamma(n) = n u / (1 - n u), and let v be the norm of one sample's gradient over all layers.

1. *Measured norm.* A sum of n computed squares, in any order, is at least (1 - gamma(n)) times its value. A dense layer
   with n inputs and m outputs multiplies the squared norms of an input and an output gradient: n + m squares, two roots
   that are squared again, one product and one sum, in all gamma(n + m + 8). A convolution, an embedding and a user's
   module square and sum the gradient that is later added, of k numbers: gamma(k + 2); a module's dense layer with one
   vector per record is one of the first kind. Adding L layers takes L operations. With K the largest such count plus L
   (for a module of d weights at most d + 10), the measured norm is at least v sqrt(1 - gamma(K)) (1 - u).
2. *Factor.* The quotient, the learning rate's factor and the product with the gradient: (1 + u)^3.
3. *Product.* Both operands of the product that sums over samples are rounded to the product's format, by a relative w
   each: 0 for float32, 2^-11 for TF32, 2^-8 for bfloat16. Each product rounds by u. So the contribution that is added
   has norm at most C (1 + e) with 1 + e = (1 + u)^5 (1 + w)^2 / sqrt(1 - gamma(K)).
4. *Sum.* Adding B vectors of norm at most C (1 + e) in any order makes an error of at most a C (1 + e) (1 + gamma(B))
   B (B + 1) / 2, where a is the error of one addition. There are two sums, one for each data set, so

       1 + delta = (1 + e) (1 + a B (B + 1) (1 + gamma(B))).

   a = u for float32. For tensor cores it is *assumed*, not proved, that they accumulate in float32 and may truncate
   instead of rounding: a = 2^-23. On an H200, sums of 4 to 4,096 exact products were off by at most 29% of B a, and
   operands were rounded to the nearest TF32 number.

The fused convolutions on a GPU multiply in bfloat16. This rounds the operands of a sample's gradient, not the gradient
whose norm is measured: each tile of it is computed twice, for the norm and for the sum, by the same instructions. That
the two have the same bits is assumed and tested. Factors and sums are float32, so w = 0 for a convolution. The dense
layers of the same model use TF32, so the bound for TF32 holds for the whole model.

It is also assumed that denormal numbers are not flushed to zero (PyTorch's default) and that the squared norms of
activations stay below 2^64; squares that underflow then change v^2 by less than K 2^-86, far below C^2.
"""

import math

from fedlane.learning.architectures import Dense, Embedding, Layer
from fedlane.learning.layered_model import LayeredModel
from fedlane.learning.model_interface import Model

UNIT = 2.0**-24
OPERAND = {"float32": 0.0, "tf32": 2.0**-11, "bfloat16": 2.0**-8}
"""Relative rounding of a product's operands, by format."""


def clipping_slack(model: Model, batch: int, precision: str = "float32") -> float:
    """Bound the relative amount by which neighbouring sums may exceed the clip norm in the fast path.

    Args:
        model: The model.
        batch: B, the largest number of places in a batch.
        precision: Format of the products' operands: `float32`, `tf32` or `bfloat16`.

    Returns:
        delta; infinite if the model or the batch is too large for float32 sums to be bounded.

    Example:
        >>> from fedlane.learning.models import make_model
        >>> clipping_slack(make_model("mlp", (1, 28, 28), 10), batch=60) < 3e-4
        True
    """
    if precision not in OPERAND:
        raise ValueError(f"precision must be one of {', '.join(OPERAND)}, got '{precision}'")
    terms = model.size + 10
    if isinstance(model, LayeredModel):
        terms = max(map(_operations, model.layers)) + len(model.layers)
    norm_error, batch_error = _gamma(terms), _gamma(batch)
    if not (norm_error < 1 and batch_error < math.inf):
        return math.inf
    addition = UNIT if precision == "float32" else 2 * UNIT
    contribution = (1 + UNIT) ** 5 * (1 + OPERAND[precision]) ** 2 / math.sqrt(1 - norm_error)
    return contribution * (1 + addition * batch * (batch + 1) * (1 + batch_error)) - 1


def _operations(layer: Layer) -> int:
    if isinstance(layer, Dense):
        return layer.inputs + layer.outputs + 8
    if isinstance(layer, Embedding):
        return layer.outputs + 2
    return 9 * layer.inputs * layer.outputs + layer.outputs + 2


def _gamma(count: int) -> float:
    return count * UNIT / (1 - count * UNIT) if count * UNIT < 1 else math.inf

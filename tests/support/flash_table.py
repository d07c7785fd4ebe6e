"""The bundled table of phones, derived from FLASH's measurements: python tests/support/flash_table.py FOLDER FILE.

FOLDER holds ai_benchmark_2020.csv and flash_layer_train_latency.npz. The training steps of the dense layer (FLASH calls
it output) are fitted by fixed_s + per_weight_s x weights + per_work_s x weights x samples, by least squares on
logarithms; the ratios of measured to fitted times are kept as quantiles.
"""

import csv
import json
import sys
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

MEASURED = {"nexus6": "Google Nexus S", "redmi_note8": "Xiaomi Redmi Note 7 Pro", "sumsung_note10": "Google Pixel 4"}
"""FLASH's measured phones, and the benchmark's entries that FLASH takes for them (flash_supported_devices.json)."""
QUANTILES = np.linspace(0.0, 1.0, 41)


def dense_layer(folder, phone):
    """Return weights, samples and seconds of a phone's 20,000 measured training steps."""
    with np.load(folder / "flash_layer_train_latency.npz") as arrays:
        x, seconds = arrays[f"{phone}__output__X"].astype(float), arrays[f"{phone}__output__seconds"].astype(float)
    weights = x[:, 0] * 1000 * x[:, 1] * 10_000  # inputs times outputs
    return weights, np.round(x[:, 2] * 50) * np.round(x[:, 3] * 10), seconds  # sequences times their length


def fitted(weights, samples, seconds):
    """Return the three coefficients and the quantiles of measured over fitted times."""
    terms = np.stack([np.ones_like(weights), weights, weights * samples])
    start = np.log([0.05, 1e-9, 1e-10])
    fit = least_squares(lambda logs: np.log(np.exp(logs) @ terms) - np.log(seconds), start, x_scale=1.0)
    coefficients = np.exp(fit.x)
    return coefficients, np.quantile(seconds / (coefficients @ terms), QUANTILES)


def derived_table(folder):
    """Return the table as plain values."""
    with (folder / "ai_benchmark_2020.csv").open(newline="") as file:
        phones = [(row["Model"], int(row["AI_Score_int"])) for row in csv.DictReader(file)]
    scores = dict(phones)
    measured = []
    for phone, entry in MEASURED.items():
        coefficients, ratios = fitted(*dense_layer(folder, phone))
        values = {
            "coefficients": [f"{value:.6g}" for value in coefficients],
            "ratios": [f"{value:.5g}" for value in ratios],
        }
        rounded = {name: [float(text) for text in texts] for name, texts in values.items()}
        measured.append({"phone": phone, "score": scores[entry], **rounded})
    return {"measured": measured, "phones": phones}


if __name__ == "__main__":
    table = derived_table(Path(sys.argv[1]))
    rows = ",\n".join(json.dumps(phone) for phone in table["phones"])
    measured = ",\n".join(json.dumps(phone) for phone in table["measured"])
    Path(sys.argv[2]).write_text(f'{{"measured": [\n{measured}],\n"phones": [\n{rows}]}}\n', encoding="utf-8")

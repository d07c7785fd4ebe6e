"""Draw the live panel of `fedlane run` from a real run that is stopped midway.

python examples/live_picture.py      # writes docs/images/live.svg
"""

import io
import re
import time
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI

from fedlane import Scenario, Simulation
from fedlane.cli.display import live_view
from fedlane.report.live import live_panel

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "live.svg"
WIDTH, HEIGHT = 92, 24
FRAME = re.sub(r"@font-face \{\{.*?\n    \}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
"""Rich's SVG template without its web fonts, so that the image makes no network requests."""


def main() -> None:
    """Run the quickstart scenario and write the panel as an SVG."""
    simulation = Simulation(Scenario.load("quickstart"), "lane", learning=True)
    started = time.monotonic()
    while simulation.round < 120 or simulation.last_round().punctual[0] == simulation.info.channels:
        simulation.step()  # continue until a round has a late client
    console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO(), color_system="truecolor")
    view = live_view(simulation.info, simulation.last_round(), simulation.round / (time.monotonic() - started))
    console.print(live_panel(view, WIDTH, HEIGHT))
    svg = console.export_svg(title="fedlane run", theme=MONOKAI, code_format=FRAME, unique_id="live")
    PICTURE.write_text(svg.replace("Fira Code", "DejaVu Sans Mono"), encoding="utf-8")
    print(f"Wrote {PICTURE.name}")


if __name__ == "__main__":
    main()

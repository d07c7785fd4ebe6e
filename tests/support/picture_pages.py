"""Take pictures of report pages with 1, 3 and 12 runs, at three widths and in both themes.

python tests/support/picture_pages.py FOLDER

FOLDER gets the run folders (kept for the next call), the pages and one PNG per picture, named
report-RUNSruns-WIDTH-THEME.png, reduced to a palette so that they can be kept in the repository.
"""

import io
import sys
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
from fedlane.report.page import build_page
from fedlane.report.page_data import page_data
from support.browsing import Tab, chromium, save_run

WIDTHS = (390, 768, 1280)
THEMES = ("light", "dark")
PARAMETERS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
POLICIES = ("lane", "random", "round-robin", *(f"mamab-om:V={V},exploration=0.05" for V in PARAMETERS))
SETTINGS = ["learning.evaluate_every=5", "learning.target_accuracy=0.5"]
COLOURS = 240
"""Number of colours of a picture."""
TALLEST = 2600
"""Height of a picture in pixels of the page; what is below is cut off."""


def run_folders(base):
    """One run folder per policy, simulated where it is missing."""
    folders = [base / policy.replace(":", "-") for policy in POLICIES]
    for folder, policy in zip(folders, POLICIES, strict=True):
        if not folder.exists():
            save_run(folder, policy=policy, rounds=80, seeds=(0, 1, 2), settings=SETTINGS)
    return folders


def with_palette(picture):
    """The picture with its most frequent bright colours and greys, so that the colours of the runs stay exact."""
    frequent = [colour for _, colour in sorted(picture.getcolors(picture.width * picture.height), reverse=True)]
    bright = [colour for colour in frequent if max(colour) - min(colour) > 60][: COLOURS // 2]
    others = [colour for colour in frequent if colour not in bright][: COLOURS - len(bright)]
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for colour in (*others, *bright) for channel in colour])
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


def main(base):
    """Write all pictures."""
    runs = run_folders(base / "runs")
    with chromium() as browser:
        for count in (1, 3, 12):
            page = base / f"page-{count}.html"
            page.write_text(build_page(page_data(runs[:count])))
            for width in WIDTHS:
                for theme in THEMES:
                    with Tab(browser, page.as_uri(), width=width, color_scheme=theme) as tab:
                        tab.look_at_round(40)
                        tab.page.wait_for_timeout(300)
                        height = min(TALLEST, tab.page.evaluate("document.documentElement.scrollHeight"))
                        tab.page.evaluate("document.activeElement.blur()")
                        tab.page.set_viewport_size({"width": width, "height": height})
                        tab.page.evaluate("scrollTo(0, 0)")
                        tab.page.wait_for_timeout(300)
                        picture = Image.open(io.BytesIO(tab.page.screenshot()))
                        if tab.errors or tab.scroll_width() > width:
                            print(f"{count} runs, {width} px, {theme}: {tab.errors} {tab.scroll_width()}")
                    name = base / f"report-{count}runs-{width}-{theme}.png"
                    with_palette(picture.convert("RGB")).save(name, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

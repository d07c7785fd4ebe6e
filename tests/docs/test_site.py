"""The documentation site: built strictly, complete, and silent towards the outside."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from support.docs_modules import load_docs_module

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def hooks():
    return load_docs_module("hooks")


class Page(HTMLParser):
    """What a page loads by itself, where it links to, and its anchors."""

    def __init__(self, path):
        super().__init__()
        self.loads, self.links, self.anchors = [], [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        of = dict(attributes)
        self.anchors |= {of[name] for name in ("id", "name") if of.get(name)}
        if tag == "a" and of.get("href"):
            self.links.append(of["href"])
        elif tag == "link" and of.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(of.get("href") or "")
        elif of.get("src"):
            self.loads.append(of["src"])


def check_nothing_is_loaded_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 50
    for path in pages:
        outside = [url for url in Page(path).loads if urlsplit(url).netloc]
        assert not outside, f"{path.relative_to(site)} loads {outside}"
    for path in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", path.read_text()), path


def check_every_link_leads_somewhere(site):
    """Also in generated pages and raw HTML, which the builder does not look at."""
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path.relative_to(site)}: {link}"
            if parts.fragment and target in pages and not parts.fragment.startswith("__"):
                assert unquote(parts.fragment) in pages[target].anchors, f"{path.relative_to(site)}: {link}"


def check_equations_lead_to_their_lines(site):
    page = (site / "equations.html").read_text()
    places = re.findall(r'href="source/(\S+?)\.html#L-(\d+)"><code>([\w.]+)</code>', page)
    assert len(places) > 50
    for path, line, name in places:
        text = (ROOT / path).read_text().splitlines()[int(line) - 1]
        around = "\n".join((ROOT / path).read_text().splitlines()[: int(line)])
        assert name.split(".")[-1] in text or f"def {name.split('.')[-1]}" in around, (path, line, name)


def check_generated_parts(site):
    """Formulas are MathML, the reference lists keys and options, every page shows logo and version."""
    for name in ("equations", "policies", "privacy", "reading-the-paper"):
        page = (site / f"{name}.html").read_text()
        assert page.count("<math ") > 15
        assert "arithmatex" not in page
    assert 'id="network.deadline_s"' in (site / "reference" / "scenario.html").read_text()
    assert "--checkpoint-every K" in (site / "reference" / "command-line.html").read_text()
    front = (site / "index.html").read_text()
    assert front.count("FedLane 0.") >= 2
    assert "assets/logo-header.svg" in front


@pytest.mark.long
def test_site(hooks, tmp_path):
    """One test: a site takes several seconds to build, and workers share no fixtures."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([*command, "--site-dir", str(tmp_path)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    check_nothing_is_loaded_from_elsewhere(tmp_path)
    check_every_link_leads_somewhere(tmp_path)
    check_equations_lead_to_their_lines(tmp_path)
    check_generated_parts(tmp_path)


def test_lines_are_found_by_name(hooks):
    source = '"""Text."""\n\nX: int = 1\n\n\nclass A:\n    def f(self):\n        y = 2\n        return y\n'
    assert hooks.line_of(source, "X") == 3
    assert hooks.line_of(source, "A.f") == 7
    assert hooks.line_of(source, "A.f+y%20=%202") == 8
    for gone in ("A.g", "f", "A.f+z"):
        with pytest.raises(LookupError):
            hooks.line_of(source, gone)


def test_a_link_to_what_is_gone_is_told(hooks):
    with pytest.raises(LookupError):
        hooks.place_of("../src/fedlane/matching/__init__.py#maximal_matching", "docs/equations.md")
    with pytest.raises(LookupError):
        hooks.place_of("../src/fedlane/match.py", "docs/equations.md")
    assert hooks.place_of("https://example.org", "docs/equations.md") is None
    assert hooks.place_of("../CONTRIBUTING.md#add-a-policy", "docs/policies.md").path == "CONTRIBUTING.md"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"])
def test_links_of_pages_outside_the_site(hooks, page):
    for match in hooks.LINK.finditer((ROOT / page).read_text()):
        place = hooks.place_of(match["target"], page)
        assert place is None or (ROOT / place.path).is_file(), match["target"]

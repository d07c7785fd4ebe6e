"""The version and the repository's address, which every page shows in its header and footer."""

import os
import re
import subprocess
from html import escape
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from mkdocs.config.defaults import MkDocsConfig

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "FEDLANE_REPOSITORY"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the version and, where it is known, the address of the repository."""
    match = re.search(r'^__version__ = "(.+)"$', (ROOT / "src/fedlane/__init__.py").read_text(), re.MULTILINE)
    assert match, "the package states its version"
    version, repository = match[1], repository_address()
    config.extra.update({"release": version, "repository": repository})
    config.repo_url = repository or "changelog.html"  # a condition of the theme; the link is in overrides/
    parts = [f"FedLane {version}", config.copyright]
    if repository:
        parts.insert(1, f'<a href="{escape(repository)}">Repository</a>')
    config.copyright = " · ".join(filter(None, parts))
    return config


def repository_address() -> str | None:
    """Return the address of the repository's web page: an environment variable's, or that of the clone's origin."""
    given = os.environ.get(VARIABLE)
    if given:
        return web_address(given)
    command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    try:
        origin = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return web_address(origin)


def web_address(remote: str) -> str | None:
    """Return the web page of a Git remote without user and password; None for a remote that is not on the web."""
    short = re.fullmatch(r"(?:[\w.-]+@)?([\w.-]+\.[a-z]+):([\w./-]+)", remote)
    if short:
        remote = f"ssh://{short[1]}/{short[2]}"
    parts = urlsplit(remote)
    if parts.scheme not in ("https", "http", "ssh") or not parts.hostname or "." not in parts.hostname:
        return None
    port = f":{parts.port}" if parts.port and parts.scheme != "ssh" else ""
    scheme = "http" if parts.scheme == "http" else "https"
    return urlunsplit((scheme, parts.hostname + port, parts.path.removesuffix("/").removesuffix(".git"), "", ""))

"""What building a distribution does beyond collecting files: the web page, and links that lead somewhere.

The page, live and of reports, is built into the package when a wheel is made and it is not there yet. A package index
shows README.md without the files that it links to: RL_INSIGHT_PROJECT_URL, the address of the repository, makes its
links absolute and becomes the links of the project. `make release PROJECT_URL=...` sets it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

STATIC = Path("src", "rl_insight", "server", "static")
WITHOUT_PAGE = "RL_INSIGHT_WITHOUT_PAGE"
BUILT = ("index.html", "report/report.js", "report/report.css")
PROJECT_URL = "RL_INSIGHT_PROJECT_URL"
_RELATIVE_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!\w+:|#)([^)\s]+)\)")


class WebPageHook(BuildHookInterface[Any]):
    """Runs `npm install` and `vite build` in `web/`; without npm the build fails, unless it is told to do without."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make sure that the page is there, and take it along although git ignores it."""
        if self.target_name == "wheel" and version == "editable":
            return  # a checkout builds its page with `make web`
        static = Path(self.root) / STATIC
        if not all((static / name).is_file() for name in BUILT):
            self._build(Path(self.root) / "web")
        if (static / "index.html").is_file():
            build_data["artifacts"].append(f"/{STATIC.as_posix()}/**")

    def _build(self, web: Path) -> None:
        npm = shutil.which("npm")
        if npm is None or not (web / "package.json").is_file():
            if os.environ.get(WITHOUT_PAGE) == "1":
                self.app.display_warning(f"Building without the web page, because {WITHOUT_PAGE}=1.")
                return
            raise RuntimeError(
                "cannot build the web page: npm was not found. Install Node.js 20 or newer and build again, or set "
                f"{WITHOUT_PAGE}=1 to build a server without its page and without reports."
            )
        self.app.display_info("Building the web page with npm.")
        # Not `npm ci`: it refuses the lock file where an index lacks the packages of one platform, even of another one.
        install = [npm, "install", "--no-save", "--no-audit", "--no-fund"]
        subprocess.run(install, cwd=web, check=True)  # noqa: S603  (our own words)
        subprocess.run([npm, "exec", "--", "vite", "build"], cwd=web, check=True)  # noqa: S603  (our own words)


class ProjectLinksHook(MetadataHookInterface):
    """Fills in the long description and the links of the project."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add `readme` and `urls`; what an unpacked source distribution says of itself stays."""
        url = os.environ.get(PROJECT_URL, "").rstrip("/")
        if url and not re.fullmatch(r"https?://[^\s/]+/\S+", url):
            raise ValueError(f"{PROJECT_URL} is {url!r}: give the address of the repository, https://HOST/OWNER/NAME.")
        version = str(metadata["version"])
        revision = "HEAD" if ".dev" in version else f"v{version}"
        if "readme" not in metadata:
            text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
            text = absolute_links(text, url, revision) if url else text
            metadata["readme"] = {"content-type": "text/markdown", "text": text}
        if "urls" not in metadata and url:
            pages = f"{url}/blob/{revision}"
            metadata["urls"] = {
                "Homepage": url,
                "Documentation": f"{pages}/docs/index.md",
                "Changelog": f"{pages}/CHANGELOG.md",
                "Issues": f"{url}/issues",
            }


def absolute_links(text: str, url: str, revision: str) -> str:
    """Return Markdown whose relative links lead into a repository: pictures to files, the rest to pages about them.

    >>> absolute_links("![a](b.png), [c](d.md#e), [f](https://g.org)", "https://h.org/i/j", "v1.0")
    '![a](https://h.org/i/j/raw/v1.0/b.png), [c](https://h.org/i/j/blob/v1.0/d.md#e), [f](https://g.org)'
    """
    return _RELATIVE_LINK.sub(
        lambda found: f"{found[1]}{found[2]}({url}/{'raw' if found[1] else 'blob'}/{revision}/{found[3]})", text
    )

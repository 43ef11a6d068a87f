"""Builds the web page, live and of reports, into the package when a wheel is made and it is not there yet."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

STATIC = Path("src", "rl_insight", "server", "static")
WITHOUT_PAGE = "RL_INSIGHT_WITHOUT_PAGE"
BUILT = ("index.html", "report/report.js", "report/report.css")


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

"""`python -m rl_insight`: the same as the command `rl-insight`."""

from __future__ import annotations

import sys

from rl_insight.cli import main

if __name__ == "__main__":
    sys.exit(main())

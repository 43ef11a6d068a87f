"""Lets `python -m rl_insight.cli` do what `rl-insight` does."""

import sys

from rl_insight.cli import main

sys.exit(main())

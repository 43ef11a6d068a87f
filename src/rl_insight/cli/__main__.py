"""Makes `python -m rl_insight.cli` equivalent to `rl-insight`."""

import sys

from rl_insight.cli import main

sys.exit(main())

"""Makes `python -m examples.async_grpo` start the launcher."""

import sys

from examples.async_grpo.launcher import main

sys.exit(main())

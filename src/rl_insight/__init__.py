"""RL-Insight."""

from rl_insight._version import __version__ as __version__

"""The configuration: typed and validated, from files, code and the environment.

>>> config = load_config({"recorder": {"flush_interval_s": 1}}, environ={})
>>> config.recorder.flush_interval_s
1.0
"""

from rl_insight.config.fields import config_keys
from rl_insight.config.loading import (
    ENVIRONMENT_VARIABLES,
    ConfigSource,
    config_from_dict,
    config_to_dict,
    load_config,
)
from rl_insight.config.model import (
    InsightConfig,
    ServerConfig,
)

__all__ = [
    "ENVIRONMENT_VARIABLES",
    "ConfigSource",
    "InsightConfig",
    "ServerConfig",
    "config_from_dict",
    "config_keys",
    "config_to_dict",
    "load_config",
]

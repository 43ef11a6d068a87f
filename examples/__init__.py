"""Programs that show how RL-Insight is used: start with `quickstart`, then read `async_grpo`."""

"""Read runs from Python: live through a server, or from run files without one.

>>> import rl_insight as insight
>>> run = insight.open_run("grpo-7b")  # doctest: +SKIP
>>> run.spans(name="rollout", step=7).to_pandas()  # doctest: +SKIP

Without pandas, Polars or pyarrow, rows are dicts: `list(run.spans(step=7))`.
"""

from rl_insight.reader.opening import open_run, runs
from rl_insight.reader.rows import Rows
from rl_insight.reader.run import Run

__all__ = ["Rows", "Run", "open_run", "runs"]

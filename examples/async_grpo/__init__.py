"""Asynchronous GRPO on a toy task, in several processes, observed by RL-Insight: `python -m examples.async_grpo`.

The training is real (the reward increases); only the delays are simulated. Read the files in this order:

`task`      the questions and the reward
`policy`    the tiny model
`agent`     one sample from prompt to reward: generate, call the tool, score  (instrumented)
`tool`      the calculator: the client and its HTTP server                    (instrumented: one trace across processes)
`rollout`   a rollout worker: many concurrent samples, with the newest weights  (instrumented)
`samples`   the samples that workers send to the trainer, and the buffer with bounded staleness
`grpo`      advantages and the clipped update
`trainer`   the training loop                                                 (instrumented)
`interruptions`  evaluations, checkpoints, a slow start
`children`  starting the processes, and making sure that none is left behind
`launcher`  the command line
"""

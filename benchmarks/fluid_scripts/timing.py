"""Times the steps of a Fluid script: what the scripts beside this file have in common."""

from __future__ import annotations

import os
import time

import paddle.fluid as fluid


def measure(loss, feeds, seconds=2.0):
    """Minimises nothing itself: runs the default programs step by step, and prints two figures.

    `first`: seconds from the start of the process (`STARTED`, as time.time() gives it) to the end of the first step;
    `steps`: steps per second after it, over so many seconds.
    """
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    main = fluid.default_main_program()

    def step(number):
        return executor.run(main, feed=feeds[number % len(feeds)], fetch_list=[loss], use_program_cache=True)

    step(0)
    print("first", time.time() - float(os.environ.get("STARTED", time.time())))
    for number in range(5):
        step(number)
    rounds = []
    end = time.time() + seconds
    while time.time() < end:
        start = time.perf_counter()
        for number in range(len(feeds)):
            step(number)
        rounds.append((time.perf_counter() - start) / len(feeds))
    print("steps", 1 / sorted(rounds)[len(rounds) // 2])

"""Processes of tests that are forked from one which has imported the package already."""

from __future__ import annotations

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")


def prepared() -> multiprocessing.context.ForkServerContext:
    """The context whose processes begin with the package imported; the first process decides what that is, for all."""
    CONTEXT.set_forkserver_preload(
        [
            "pstranspile.runtime.kernels",
            "pstranspile.frontends.layers",
            "pstranspile.fluid.paddle",
            "tests.cluster.net.forked",
        ]
    )
    return CONTEXT

"""What the communicators of a job in mode geo get besides the programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pstranspile.plan.plan import GeoPlan, PlannedParameter


def delta_name(variable: str) -> str:
    """Under which name the change of a parameter or slice travels; Fluid's communicators and servers make it so."""
    return f"{variable}.delta"


def vars_info(parameters: Sequence[PlannedParameter]) -> dict[str, dict[str, list[str]]]:
    """Per parameter what Fluid's communicator is told of it, as `_get_vars_info` gives it: all values are texts.

    `var_names`: its slices; `sections`: the rows of each; `epmap`: the server of each; `is_sparse`: "True" or "False".
    """
    return {
        parameter.name: {
            "var_names": [s.name for s in parameter.slices],
            "sections": [str(s.stop - s.start) for s in parameter.slices],
            "epmap": [s.endpoint for s in parameter.slices],
            "is_sparse": [str(parameter.sparse)],
        }
        for parameter in parameters
    }


def geo_json(geo: GeoPlan | None, parameters: Sequence[PlannedParameter]) -> dict[str, Any]:
    """What communicators are told as `plan.json` has it, under the key `geo`; nothing in other modes."""
    if geo is None:
        return {}
    return {"geo": {"need_push_nums": geo.need_push_nums, "vars_info": vars_info(parameters)}}

"""Parts of tensors, tensors put together, and indices."""

from __future__ import annotations

from pstranspile.ops.schema import INTS, LONG, declare, declare_gradient, ints, optional

declare(
    "concat",
    "X* AxisTensor? -> Out",
    {"use_mkldnn": False, "axis": 0, "use_quantizer": False, "num": optional("int"), "sections": optional("ints")},
    doc="Out = all X one after another along `axis`",
)
declare_gradient(
    "concat",
    "X* AxisTensor? Out@GRAD -> X@GRAD*",
    {"axis": 0, "use_mkldnn": False, "use_quantizer": False},
)
declare(
    "split",
    "X AxisTensor? SectionsTensorList*? -> Out*",
    {"sections": ints(), "num": 0, "axis": 0},
    doc="Out = X cut along `axis` into `num` equal parts or into `sections`",
)
declare("stack", "X* -> Y", {"axis": 0}, doc="Y = all X along a new dim `axis`")
declare_gradient("stack", "Y@GRAD -> X@GRAD*")
declare(
    "slice",
    "Input StartsTensor? EndsTensor? StartsTensorList*? EndsTensorList*? -> Out",
    {"axes": INTS, "starts": ints(), "ends": ints(), "infer_flags": ints(), "decrease_axis": ints()},
    doc="Out = Input from `starts` to `ends` along `axes`, without the dims decrease_axis",
)
declare_gradient("slice", "Input StartsTensor? EndsTensor? StartsTensorList*? EndsTensorList*? Out@GRAD -> Input@GRAD")
declare(
    "expand",
    "X ExpandTimes? expand_times_tensor*? -> Out",
    {"expand_times": ints()},
    doc="Out = X repeated expand_times along each dim",
)
declare_gradient("expand", "X ExpandTimes? expand_times_tensor*? Out@GRAD -> X@GRAD")
declare("gather", "X Index -> Out", {"overwrite": True}, doc="Out = the rows of X at Index")
declare_gradient("gather", "X Index Out@GRAD -> X@GRAD")
declare(
    "scatter",
    "X Ids Updates -> Out",
    {"overwrite": True},
    doc="Out = X with the rows at Ids replaced by Updates, or Updates added to them",
)
declare_gradient("scatter", "Ids Updates Out@GRAD -> X@GRAD Updates@GRAD")
declare(
    "top_k", "X K? -> Out Indices", {"k": 1}, doc="Out = the k largest elements of each row, Indices = where they were"
)
declare_gradient("top_k", "X Indices Out@GRAD -> X@GRAD", {})
declare(
    "arg_max",
    "X -> Out",
    {"axis": LONG, "keepdims": False, "dtype": -1},
    doc="Out = the index of the largest element along `axis`",
)
declare(
    "one_hot",
    "X depth_tensor? -> Out",
    {"depth": -1, "dtype": 5, "allow_out_of_range": False},
    doc="Out = a row of `depth` elements for each id of X (whose last dim is 1), 1 at the id and 0 elsewhere",
)
declare(
    "one_hot_v2",
    "X depth_tensor? -> Out",
    {"depth": -1, "dtype": 5, "allow_out_of_range": False},
    doc="as one_hot, for X of any shape",
)
declare("range", "Start End Step -> Out", doc="Out = Start, Start + Step, ... up to and without End")

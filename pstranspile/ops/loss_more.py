"""Losses that are less often used."""

from __future__ import annotations

from pstranspile.ops.schema import BOOL, INT, UNSCOPED, declare, declare_gradient, ints, long

declare(
    "bce_loss",
    "X Label -> Out",
    doc="Out = the binary cross entropy of the probabilities X with Label, element by element",
)
declare_gradient("bce_loss", "X Label Out@GRAD -> X@GRAD", UNSCOPED)
declare(
    "bpr_loss",
    "X Label -> Y",
    doc="Y = Bayesian personalised ranking: the label's score against those of all other classes",
)
declare_gradient("bpr_loss", "X Label Y@GRAD -> X@GRAD")
declare(
    "center_loss",
    "X Label Centers CenterUpdateRate -> CentersOut SampleCenterDiff Loss",
    {"cluster_num": INT, "need_update": BOOL},
    doc="Loss = half the squared distance of X to the centre of its class",
)
declare_gradient("center_loss", "X SampleCenterDiff Loss@GRAD -> X@GRAD")
declare("hinge_loss", "Logits Labels -> Loss", doc="Loss = max(0, 1 - Logits * (2 * Labels - 1))")
declare_gradient("hinge_loss", "Logits Labels Loss@GRAD -> Logits@GRAD")
declare(
    "kldiv_loss", "X Target -> Loss", {"reduction": "mean"}, doc="Loss = Target * (log(Target) - X), reduced as asked"
)
declare_gradient("kldiv_loss", "X Target Loss@GRAD -> X@GRAD")
declare(
    "margin_rank_loss", "X1 X2 Label -> Activated Out", {"margin": 0.0}, doc="Out = max(0, margin - Label * (X1 - X2))"
)
declare_gradient("margin_rank_loss", "Label Activated Out@GRAD -> X1@GRAD X2@GRAD")
declare(
    "modified_huber_loss",
    "X Y -> IntermediateVal Out",
    doc="Out = max(0, 1 - v)^2 where v >= -1, else -4 * v; v = X * (2 * Y - 1)",
)
declare_gradient("modified_huber_loss", "Y IntermediateVal Out@GRAD -> X@GRAD")
declare(
    "nll_loss",
    "X Label Weight? -> Out Total_weight",
    {"ignore_index": long(-100), "reduction": "mean"},
    doc="Out = -Weight * X at the label, reduced as asked",
)
declare_gradient("nll_loss", "X Label Weight? Total_weight Out@GRAD -> X@GRAD")
declare("rank_loss", "Label Left Right -> Out", doc="Out = the cross entropy of sigmoid(Left - Right) with Label")
declare_gradient("rank_loss", "Label Left Right Out@GRAD -> Left@GRAD Right@GRAD")
declare(
    "smooth_l1_loss",
    "X Y InsideWeight? OutsideWeight? -> Diff Out",
    {"sigma": 1.0},
    doc="Out = the Huber loss of each row, with weights inside and outside",
)
declare_gradient("smooth_l1_loss", "InsideWeight? OutsideWeight? Diff Out@GRAD -> X@GRAD Y@GRAD")
declare(
    "sigmoid_focal_loss",
    "X Label FgNum -> Out",
    {"gamma": 2.0, "alpha": 0.25},
    doc="Out = the focal loss of sigmoid(X) with Label",
)
declare_gradient("sigmoid_focal_loss", "X Label FgNum Out@GRAD -> X@GRAD")
declare(
    "teacher_student_sigmoid_loss",
    "X Label -> Y",
    {"soft_max_up_bound": 15.0, "soft_max_lower_bound": -15.0},
    doc="Y = the sum of the losses against a label and a teacher's score",
)
declare_gradient("teacher_student_sigmoid_loss", "X Label Y@GRAD -> X@GRAD")
declare(
    "label_smooth",
    "X PriorDist? -> Out",
    {"epsilon": 0.0},
    doc="Out = (1 - epsilon) * X + epsilon * PriorDist (or 1 / classes)",
)
declare_gradient("label_smooth", "Out@GRAD -> X@GRAD")
declare(
    "linear_chain_crf",
    "Emission Transition Label Length? -> Alpha EmissionExps TransitionExps LogLikelihood",
    doc="LogLikelihood = that of the label paths under a linear chain",
)
declare_gradient(
    "linear_chain_crf",
    "Emission Transition Label Length? Alpha EmissionExps TransitionExps LogLikelihood@GRAD -> "
    "Emission@GRAD Transition@GRAD",
)
declare(
    "crf_decoding",
    "Emission Transition Label? Length? -> ViterbiPath",
    doc="ViterbiPath = the likeliest path under a linear chain, or whether it is Label",
)
declare(
    "warpctc",
    "Logits Label LogitsLength? LabelLength? -> WarpCTCGrad Loss",
    {"blank": 0, "norm_by_times": False},
    doc="Loss = connectionist temporal classification",
)
declare_gradient("warpctc", "Logits LogitsLength? WarpCTCGrad Loss@GRAD -> Logits@GRAD")
declare(
    "ctc_align",
    "Input InputLength? -> Output OutputLength?",
    {"blank": 0, "merge_repeated": True, "padding_value": 0},
    doc="Output = Input without repeats and blanks",
)
declare(
    "edit_distance",
    "Hyps Refs HypsLength? RefsLength? -> SequenceNum Out",
    {"normalized": False},
    doc="Out = how many changes turn each Hyps into its Refs",
)
declare(
    "chunk_eval",
    "Inference Label SeqLength? -> Precision Recall F1-Score NumInferChunks NumLabelChunks NumCorrectChunks",
    {"num_chunk_types": INT, "chunk_scheme": "IOB", "excluded_chunk_types": ints()},
    doc="precision, recall and F1 of chunks found in sequences",
)
declare(
    "precision_recall",
    "MaxProbs Indices Labels Weights? StatesInfo? -> BatchMetrics AccumMetrics AccumStatesInfo",
    {"class_number": INT},
    doc="precision and recall of each class, for this batch and so far",
)
declare(
    "mean_iou",
    "Predictions Labels InWrongs*? InCorrects*? InMeanIou*? -> OutMeanIou OutWrong OutCorrect",
    {"num_classes": INT},
    doc="OutMeanIou = the mean over classes of intersection over union",
)

"""Fluid's `layers.detection`: objects found in images."""

from __future__ import annotations

from pstranspile.fluid.layers.accepted import checked_all
from pstranspile.fluid.layers.detection_found import detection_map as detection_map
from pstranspile.fluid.layers.detection_found import detection_output as detection_output
from pstranspile.fluid.layers.detection_found import locality_aware_nms as locality_aware_nms
from pstranspile.fluid.layers.detection_found import matrix_nms as matrix_nms
from pstranspile.fluid.layers.detection_found import multiclass_nms as multiclass_nms
from pstranspile.fluid.layers.detection_found import retinanet_detection_output as retinanet_detection_output
from pstranspile.fluid.layers.detection_ops import anchor_generator as anchor_generator
from pstranspile.fluid.layers.detection_ops import bipartite_match as bipartite_match
from pstranspile.fluid.layers.detection_ops import box_clip as box_clip
from pstranspile.fluid.layers.detection_ops import box_coder as box_coder
from pstranspile.fluid.layers.detection_ops import box_decoder_and_assign as box_decoder_and_assign
from pstranspile.fluid.layers.detection_ops import density_prior_box as density_prior_box
from pstranspile.fluid.layers.detection_ops import iou_similarity as iou_similarity
from pstranspile.fluid.layers.detection_ops import polygon_box_transform as polygon_box_transform
from pstranspile.fluid.layers.detection_ops import prior_box as prior_box
from pstranspile.fluid.layers.detection_ops import target_assign as target_assign
from pstranspile.fluid.layers.detection_ops import yolo_box as yolo_box
from pstranspile.fluid.layers.detection_ops import yolov3_loss as yolov3_loss
from pstranspile.fluid.layers.detection_rcnn import collect_fpn_proposals as collect_fpn_proposals
from pstranspile.fluid.layers.detection_rcnn import distribute_fpn_proposals as distribute_fpn_proposals
from pstranspile.fluid.layers.detection_rcnn import generate_mask_labels as generate_mask_labels
from pstranspile.fluid.layers.detection_rcnn import generate_proposal_labels as generate_proposal_labels
from pstranspile.fluid.layers.detection_rcnn import generate_proposals as generate_proposals
from pstranspile.fluid.layers.detection_rcnn import retinanet_target_assign as retinanet_target_assign
from pstranspile.fluid.layers.detection_rcnn import rpn_target_assign as rpn_target_assign
from pstranspile.fluid.layers.detection_ssd import multi_box_head as multi_box_head
from pstranspile.fluid.layers.detection_ssd import ssd_loss as ssd_loss
from pstranspile.fluid.layers.regions import roi_perspective_transform as roi_perspective_transform
from pstranspile.fluid.missing import names_of_fluid

__getattr__ = names_of_fluid(__name__, globals())
checked_all(globals())

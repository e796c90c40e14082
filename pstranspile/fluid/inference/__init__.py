"""Trained models as Fluid's inference engine runs them: configurations, predictors, and the tensors that they take."""

from __future__ import annotations

from pstranspile.fluid.inference.predictor import AnalysisConfig as AnalysisConfig
from pstranspile.fluid.inference.predictor import AnalysisPredictor as AnalysisPredictor
from pstranspile.fluid.inference.predictor import NativeConfig as NativeConfig
from pstranspile.fluid.inference.predictor import NativePaddlePredictor as NativePaddlePredictor
from pstranspile.fluid.inference.predictor import PaddleBuf as PaddleBuf
from pstranspile.fluid.inference.predictor import PaddleDType as PaddleDType
from pstranspile.fluid.inference.predictor import PaddlePredictor as PaddlePredictor
from pstranspile.fluid.inference.predictor import PaddleTensor as PaddleTensor
from pstranspile.fluid.inference.predictor import ZeroCopyTensor as ZeroCopyTensor
from pstranspile.fluid.inference.predictor import create_paddle_predictor as create_paddle_predictor

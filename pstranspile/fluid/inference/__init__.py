"""Trained models as Fluid's inference engine runs them: configurations, predictors, and the tensors that they take."""

from __future__ import annotations

from pstranspile.fluid.inference.config import AnalysisConfig as AnalysisConfig
from pstranspile.fluid.inference.config import NativeConfig as NativeConfig
from pstranspile.fluid.inference.predictor import AnalysisPredictor as AnalysisPredictor
from pstranspile.fluid.inference.predictor import NativePaddlePredictor as NativePaddlePredictor
from pstranspile.fluid.inference.predictor import PaddlePredictor as PaddlePredictor
from pstranspile.fluid.inference.predictor import create_paddle_predictor as create_paddle_predictor
from pstranspile.fluid.inference.tensors import PaddleBuf as PaddleBuf
from pstranspile.fluid.inference.tensors import PaddleDType as PaddleDType
from pstranspile.fluid.inference.tensors import PaddleTensor as PaddleTensor
from pstranspile.fluid.inference.tensors import ZeroCopyTensor as ZeroCopyTensor

"""PyTorch models: traced into programs, checked against what a cluster would train, and trained.

    import pstranspile.torch as pt
    report = pt.check(model, batch, loss=loss, optimizer=optimizer, trainers=2)
    print(report)

Needs torch (`pip install 'pstranspile[torch]'`).
"""

from pstranspile.frontends.torch.training import Training, trace
from pstranspile.proof.pytorch import ModelCause, ModelReport, assert_equal, check_training
from pstranspile.proof.pytorch import check_model as check

__all__ = ["ModelCause", "ModelReport", "Training", "assert_equal", "check", "check_training", "trace"]

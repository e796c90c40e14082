"""Fluid's `paddle.dataset`: readers of public data sets, whose files a user has put in place."""

from pstranspile.fluid.paddle.dataset import cifar as cifar
from pstranspile.fluid.paddle.dataset import common as common
from pstranspile.fluid.paddle.dataset import conll05 as conll05
from pstranspile.fluid.paddle.dataset import flowers as flowers
from pstranspile.fluid.paddle.dataset import image as image
from pstranspile.fluid.paddle.dataset import imdb as imdb
from pstranspile.fluid.paddle.dataset import imikolov as imikolov
from pstranspile.fluid.paddle.dataset import mnist as mnist
from pstranspile.fluid.paddle.dataset import movielens as movielens
from pstranspile.fluid.paddle.dataset import mq2007 as mq2007
from pstranspile.fluid.paddle.dataset import sentiment as sentiment
from pstranspile.fluid.paddle.dataset import uci_housing as uci_housing
from pstranspile.fluid.paddle.dataset import voc2012 as voc2012
from pstranspile.fluid.paddle.dataset import wmt14 as wmt14
from pstranspile.fluid.paddle.dataset import wmt16 as wmt16
from pstranspile.fluid.paddle.later import not_there


def __getattr__(name: str) -> object:
    raise not_there(f"paddle.dataset.{name}", globals())

"""Fluid's `contrib.decoder`: decoders of sequences that share a cell for training and search."""

from __future__ import annotations

from pstranspile.fluid.contrib.decoder import beam_search_decoder as beam_search_decoder
from pstranspile.fluid.contrib.decoder.beam_search_decoder import BeamSearchDecoder as BeamSearchDecoder
from pstranspile.fluid.contrib.decoder.beam_search_decoder import InitState as InitState
from pstranspile.fluid.contrib.decoder.beam_search_decoder import StateCell as StateCell
from pstranspile.fluid.contrib.decoder.beam_search_decoder import TrainingDecoder as TrainingDecoder
from pstranspile.fluid.missing import names_of_fluid

__getattr__ = names_of_fluid(__name__, globals())

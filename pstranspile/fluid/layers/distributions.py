"""Fluid's `layers.distributions`: distributions whose parameters are numbers, arrays or variables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.layers import control_flow, nn, ops, tensor
from pstranspile.fluid.layers.adapt import check_kind, check_variable
from pstranspile.fluid.missing import names_of_fluid


def _parameters(name: str, given: dict[str, Any], kinds: tuple[str, ...]) -> tuple[list[Any], bool]:
    """Parameters as variables, with arrays broadcast against each other, and whether the script passed variables.

    Raises TypeError for other values, ValueError where only some of the parameters are variables.
    """
    for parameter, value in given.items():
        check_kind(name, parameter, value, kinds)
        if isinstance(value, int):
            raise TypeError(f"{name}: {parameter} must be a float, not the whole number {value}")
    values = list(given.values())
    variables = [isinstance(value, Variable) for value in values]
    if all(variables):
        return values, True
    if any(variables):
        raise ValueError(f"{name}: {' and '.join(given)} are all variables, or none is")
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(value, "float32")) for value in values))
    made: list[Any] = []
    for array in arrays:
        held = tensor.create_tensor(dtype="float32")
        tensor.assign(np.array(array), held)
        made.append(held)
    return made, False


class Distribution:
    """The base class of distributions; each defines the methods that it supports."""

    def sample(self, shape: list[int], seed: int = 0) -> Any:
        """Draws numbers."""
        raise NotImplementedError

    def entropy(self) -> Any:
        """The entropy."""
        raise NotImplementedError

    def kl_divergence(self, other: Any) -> Any:
        """The Kullback-Leibler divergence from another distribution of the same kind."""
        raise NotImplementedError

    def log_prob(self, value: Any) -> Any:
        """The logarithm of the density at values."""
        raise NotImplementedError


class _TwoParameterDistribution(Distribution):
    """A distribution with two parameters that are numbers, arrays or variables."""

    def __init__(self, **given: Any):
        kinds = ("float", "ndarray", "Variable", "list")
        (self._first_parameter, self._second_parameter), self.batch_size_unknown = _parameters(
            type(self).__name__, given, kinds
        )
        self.all_arg_is_float = all(isinstance(value, float) for value in given.values())

    def _draw_standard_sample(self, shape: list[int], seed: int) -> Any:
        """Draws numbers of the standard distribution, with the dims `shape`."""
        raise NotImplementedError

    def _drawn_like(self, zeros: Any, seed: int) -> Any:
        """Draws numbers of the standard distribution, with the dims of a variable."""
        raise NotImplementedError

    def _spread(self, zeros: Any) -> Any:
        """The factor on numbers of the standard distribution, with the dims of `zeros`."""
        raise NotImplementedError

    def _zeros(self, shape: list[int]) -> Any:
        """Zeros whose dims are those of the parameters, the first of which may be known at run time
        only, and `shape`.
        """
        dims = [*(self._first_parameter + self._second_parameter).shape, *shape]
        return tensor.fill_constant_batch_size_like(
            self._first_parameter + self._second_parameter, dims, self._first_parameter.dtype, 0.0
        )

    def sample(self, shape: list[int], seed: int = 0) -> Any:
        """Draws numbers with the dims `shape`, followed by those of the parameters unless these are two floats."""
        check_kind("sample", "shape", shape, ("list",))
        check_kind("sample", "seed", seed, ("int",))
        if self.batch_size_unknown:
            zeros = self._zeros(shape)
            drawn = self._drawn_like(zeros, seed)
            made = drawn * self._spread(zeros) + self._first_parameter
            return nn.reshape(made, [*shape, *zeros.shape[: len(zeros.shape) - len(shape)]])
        dims = [*shape, *(self._first_parameter + self._second_parameter).shape]
        drawn = self._draw_standard_sample(dims, seed)
        made = drawn * self._spread(tensor.zeros(dims, dtype=self._first_parameter.dtype)) + self._first_parameter
        return nn.reshape(made, shape) if self.all_arg_is_float else made


class Uniform(_TwoParameterDistribution):
    """The uniform distribution over [low, high)."""

    def __init__(self, low: Any, high: Any):
        super().__init__(low=low, high=high)
        self.low, self.high = self._first_parameter, self._second_parameter

    def _draw_standard_sample(self, shape: list[int], seed: int) -> Any:
        return nn.uniform_random(shape, min=0.0, max=1.0, seed=seed)

    def _drawn_like(self, zeros: Any, seed: int) -> Any:
        return nn.uniform_random_batch_size_like(zeros, zeros.shape, min=0.0, max=1.0, seed=seed)

    def _spread(self, zeros: Any) -> Any:
        return zeros + self.high - self.low if self.batch_size_unknown else zeros + (self.high - self.low)

    def log_prob(self, value: Any) -> Any:
        """The logarithm of the density at values: minus infinity outside of the interval."""
        check_variable("log_prob", "value", value, ("float32", "float64"))
        inside = [control_flow.less_than(self.low, value), control_flow.less_than(value, self.high)]
        above, below = [tensor.cast(holds, dtype=value.dtype) for holds in inside]
        return _log(above * below) - _log(self.high - self.low)

    def entropy(self) -> Any:
        """The entropy."""
        return _log(self.high - self.low)


class Normal(_TwoParameterDistribution):
    """The normal distribution with the mean `loc` and the standard deviation `scale`."""

    def __init__(self, loc: Any, scale: Any):
        super().__init__(loc=loc, scale=scale)
        self.loc, self.scale = self._first_parameter, self._second_parameter

    def _draw_standard_sample(self, shape: list[int], seed: int) -> Any:
        return nn.gaussian_random(shape, mean=0.0, std=1.0, seed=seed)

    def _drawn_like(self, zeros: Any, seed: int) -> Any:
        return nn.gaussian_random(nn.shape(zeros), mean=0.0, std=1.0, seed=seed)

    def _spread(self, zeros: Any) -> Any:
        return zeros + self.scale

    def entropy(self) -> Any:
        """The entropy."""
        zeros = self._zeros([])
        return 0.5 + 0.5 * math.log(2 * math.pi) + _log(self.scale + zeros)

    def log_prob(self, value: Any) -> Any:
        """The logarithm of the density at values."""
        check_variable("log_prob", "value", value, ("float32", "float64"))
        variance = self.scale * self.scale
        logarithm = _log(self.scale)
        squared = (value - self.loc) * (value - self.loc)
        return -1.0 * squared / (2.0 * variance) - logarithm - math.log(math.sqrt(2.0 * math.pi))

    def kl_divergence(self, other: Any) -> Any:
        """The Kullback-Leibler divergence from another normal distribution."""
        _require_same_type(self, other)
        ratio = self.scale / other.scale
        ratio = ratio * ratio
        apart = (self.loc - other.loc) / other.scale
        return 0.5 * (ratio + apart * apart - 1.0 - _log(ratio))


class Categorical(Distribution):
    """A distribution over classes with the probabilities softmax(logits) along the last dim."""

    def __init__(self, logits: Any):
        (self.logits,), _ = _parameters("Categorical", {"logits": logits}, ("ndarray", "Variable", "list"))

    def _relative(self) -> Any:
        return self.logits - nn.reduce_max(self.logits, dim=-1, keep_dim=True)

    def kl_divergence(self, other: Any) -> Any:
        """The Kullback-Leibler divergence from another distribution over as many classes."""
        _require_same_type(self, other)
        own, others = self._relative(), other._relative()
        weights, other_weights = _exp(own), _exp(others)
        total = nn.reduce_sum(weights, dim=-1, keep_dim=True)
        other_total = nn.reduce_sum(other_weights, dim=-1, keep_dim=True)
        shares = weights / total
        apart = own - _log(total) - others + _log(other_total)
        return nn.reduce_sum(shares * apart, dim=-1, keep_dim=True)

    def entropy(self) -> Any:
        """The entropy."""
        own = self._relative()
        weights = _exp(own)
        total = nn.reduce_sum(weights, dim=-1, keep_dim=True)
        return -1.0 * nn.reduce_sum(weights / total * (own - _log(total)), dim=-1, keep_dim=True)


class MultivariateNormalDiag(Distribution):
    """The normal distribution with the mean `loc` [k] and the diagonal covariance matrix `scale` [k, k]."""

    def __init__(self, loc: Any, scale: Any):
        kinds = ("ndarray", "Variable", "list")
        if isinstance(loc, Variable) or isinstance(scale, Variable):
            (self.loc, self.scale), _ = _parameters("MultivariateNormalDiag", {"loc": loc, "scale": scale}, kinds)
        else:
            (self.loc,), _ = _parameters("MultivariateNormalDiag", {"loc": loc}, kinds)
            (self.scale,), _ = _parameters("MultivariateNormalDiag", {"scale": scale}, kinds)

    def _parts(self, value: Any) -> tuple[Any, Any]:
        """A matrix of ones and the identity matrix, with the dims of `value`."""
        dims = list(value.shape)
        ones = tensor.ones(shape=dims, dtype=self.loc.dtype)
        return ones, tensor.diag(tensor.ones(shape=dims[:1], dtype=self.loc.dtype))

    def _determinant(self, value: Any) -> Any:
        ones, unit = self._parts(value)
        return nn.reduce_prod(value + ones - unit)

    def _inverse(self, value: Any) -> Any:
        ones, unit = self._parts(value)
        return nn.elementwise_pow(value, ones - 2 * unit)

    def entropy(self) -> Any:
        """The entropy."""
        return 0.5 * (self.scale.shape[0] * (1.0 + math.log(2 * math.pi)) + _log(self._determinant(self.scale)))

    def kl_divergence(self, other: Any) -> Any:
        """The Kullback-Leibler divergence from another distribution with as many dims."""
        _require_same_type(self, other)
        trace = nn.reduce_sum(self._inverse(other.scale) * self.scale)
        weighted = nn.matmul(other.loc - self.loc, self._inverse(other.scale))
        square = nn.matmul(weighted, other.loc - self.loc)
        determinants = _log(self._determinant(other.scale)) - _log(self._determinant(self.scale))
        return 0.5 * (trace + square - self.scale.shape[0] + determinants)


def _require_same_type(own: Distribution, other: Any) -> None:
    if not isinstance(other, type(own)):
        kind = type(own).__name__
        raise TypeError(f"kl_divergence: other must be {kind} as this one, not {type(other).__name__}")


def _log(x: Any) -> Any:
    return ops.log(x)


def _exp(x: Any) -> Any:
    return ops.exp(x)


__getattr__ = names_of_fluid(__name__, globals())

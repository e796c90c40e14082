"""Random models with loops, branches, recurrent networks and arrays that overwrite variables."""

from __future__ import annotations

from random import Random

from pstranspile.frontends import layers as L
from pstranspile.frontends.layers.parameters import create_parameter
from pstranspile.ir.types import DType

WEIGHTS = ("u", "w")
SIZE = 2


class Model:
    """A model of a seed: `draft` holds it, `loss` names its loss. `w` and `u` are its parameters."""

    def __init__(self, seed: int):
        self.random = Random(seed)
        self.draft = L.Draft(seed=1)
        names = [create_parameter(self.draft, name, L.ParamAttr(name=name), [SIZE, SIZE], "f64") for name in WEIGHTS]
        self.u, self.w = names
        makers = [
            lambda: L.tanh(self.u),
            lambda: L.elementwise_mul(self.u, self.u),
            lambda: L.scale(self.u, 0.7),
        ]
        self.x = [make() for make in self.random.sample(makers, self.random.randint(1, 3))]
        self.one = L.fill_constant(self.draft, [1], DType.INT64, 1)
        self.statements(0, self.random.randint(1, 3))
        self.loss = self._loss().name

    def _loss(self) -> L.Value:
        read = self.random.sample(self.x, self.random.randint(1, len(self.x)))
        total = L.reduce_sum(L.elementwise_mul(L.tanh(read[0]), self.random.choice(self.x)))
        for value in read[1:]:
            total = L.elementwise_add(total, L.reduce_sum(value))
        return total

    def some(self) -> L.Value:
        return self.random.choice(self.x)

    def value(self) -> L.Value:
        match self.random.choice(["tanh", "tanh", "mul", "add", "scale", "weight", "square", "constant"]):
            case "tanh":
                return L.tanh(L.matmul(self.some(), self.w))
            case "mul":
                return L.elementwise_mul(self.some(), self.some())
            case "add":
                return L.elementwise_add(self.some(), self.some())
            case "weight":
                return L.scale(self.w, 0.5)
            case "square":
                return L.square(self.some())
            case "constant":
                return L.fill_constant(self.draft, [SIZE, SIZE], DType.FP64, 0.3)
        return L.scale(self.some(), 0.5, 0.1)

    def statements(self, depth: int, count: int) -> None:
        for _ in range(count):
            self.statement(depth)

    def statement(self, depth: int) -> None:
        kinds = ["assign", "assign", "late", "direct"]
        if depth < 2:
            kinds += ["loop", "loop", "branch", "switch", "array", "recurrent"]
        match self.random.choice(kinds):
            case "assign":
                L.assign(self.value(), self.some())
            case "late":  # all new values at the end, as `fluid.layers.while_loop` gives them
                made = [
                    (self.value(), target) for target in self.random.sample(self.x, self.random.randint(1, len(self.x)))
                ]
                for value, target in made:
                    L.assign(value, target)
            case "direct":
                self.draft.op(self.random.choice(["tanh", "square", "relu"]), {"X": self.some()}, {"Out": self.some()})
            case "loop":
                self.loop(lambda _: self.statements(depth + 1, self.random.randint(1, 3)))
            case "branch":
                with L.when(self.condition()):
                    self.statements(depth + 1, self.random.randint(1, 2))
            case "switch":
                switch = L.Switch()
                with switch.case(self.condition()):
                    self.statements(depth + 1, 1)
                with switch.default():
                    self.statements(depth + 1, 1)
            case "array":
                self.array(depth)
            case "recurrent":
                self.recurrent()

    def condition(self) -> L.Value:
        limit = L.fill_constant(self.draft, [1], DType.FP64, self.random.choice([-9.0, 0.4, 9.0]))
        return L.less_than(L.reduce_sum(self.some()), limit)

    def loop(self, run: object) -> None:
        i = L.fill_constant(self.draft, [1], DType.INT64, 0)
        last = L.fill_constant(self.draft, [1], DType.INT64, self.random.randint(0, 3))
        condition = L.less_than(i, last)
        with L.while_(condition):
            run(i)  # type: ignore
            L.increment(i)
            L.less_than(i, last, out=condition)

    def array(self, depth: int) -> None:
        """What the steps of a loop write, and one of them read again."""
        start = L.fill_constant(self.draft, [1], DType.INT64, 0)
        array = L.array_write(self.some(), start)

        def run(i: L.Value) -> None:
            read = L.array_read(array, i)
            self.x.append(read)
            self.statements(depth + 1, 1)
            made = self.value()
            self.x.remove(read)
            following = L.elementwise_add(i, self.one)
            L.array_write(made, following, array)

        self.loop(run)
        at = self.random.choice([start, L.fill_constant(self.draft, [1], DType.INT64, 0)])
        L.assign(L.array_read(array, at), self.some())

    def recurrent(self) -> None:
        steps = L.concat([L.unsqueeze(self.some(), [0]) for _ in range(2)], axis=0)
        start = self.some()
        rnn = L.StaticRNN(self.draft)
        with rnn.step():
            given = rnn.step_input(steps)
            before = rnn.memory(start)
            after = L.tanh(L.elementwise_add(L.matmul(before, self.w), given))
            if self.random.random() < 0.5:
                after = L.elementwise_mul(after, self.random.choice([self.w, after, before]))
            rnn.update_memory(before, after)
            rnn.step_output(after)
        L.assign(L.reduce_sum(rnn(), dim=[0]), self.some())

"""What is said of code that torch can't export, at the user's line and expression."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, cast

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, error, name_list, quantity
from pstranspile.ir.model import Location
from pstranspile.ir.patterns import Pattern

# Places in the user's code.


_FRAME = Pattern(r'\s*File "([^"]+)", line (\d+), in ')
"""The line of a stack that names a frame."""

_MARKS = Pattern(r"\s*([\^~]+)\s*$")
"""The line under a quoted line of code that marks an expression in it."""

_OURS = str(Path(__file__).parents[2])
"""The folder of this package."""

_PYTHON = sysconfig.get_path("stdlib")
"""The folder of Python's own modules."""

_LIBRARY = Pattern(
    rf".*[/\\](?:site|dist)-packages[/\\]|<(?!i?python-input)|(?:{re.escape(_OURS)}|{re.escape(_PYTHON)})[/\\]"
)
"""The beginning of the path of a file that is not the user's: packages, Python's, this one's, and `<...>` but for what
is typed to an interactive Python."""


class _StackFrame(NamedTuple):
    """A frame of a stack that torch prints."""

    file: str
    line: int
    column: int
    """The column of the marked expression, from 1; 0 if none is marked."""
    width: int

    @property
    def code(self) -> str:
        """The marked expression, as far as it is on this line."""
        text = linecache.getline(self.file, self.line)
        return text[self.column - 1 :][: self.width].rstrip() if self.column else ""


def _frames(stack: str | None) -> list[_StackFrame]:
    lines = (stack or "").splitlines()
    result: list[_StackFrame] = []
    for at, line in enumerate(lines):
        if (made := _FRAME.match(line)) is None:
            continue
        file, number, column, width = made[1], int(made[2]), 0, 0
        if at + 2 < len(lines) and (marks := _MARKS.match(lines[at + 2])) is not None:
            quoted, source = lines[at + 1], linecache.getline(file, number)
            # torch quotes the line without its indentation, and indents it by its own
            shift = (len(source) - len(source.lstrip())) - (len(quoted) - len(quoted.lstrip()))
            column, width = marks.start(1) + shift + 1, len(marks[1])
        result.append(_StackFrame(file, number, column, width))
    return result


def is_own(file: str) -> bool:
    """Whether a file is the user's."""
    return _LIBRARY.match(file) is None


_TRACER = Pattern(r"[/\\]torch[/\\](?:_dynamo|_export|export|fx)[/\\]")
"""The folders of torch's tracer in the paths of files."""


_OF_TORCH = Pattern(r"(?:site|dist)-packages[/\\]torch[/\\]")
"""The folder of torch in the paths of files."""


def is_torch_file(file: str) -> bool:
    """Whether a file is one of torch."""
    return _OF_TORCH.search(file) is not None


def user_line(stack: str | None) -> Location | None:
    """The innermost line of the user's files in torch's text of a stack, else the innermost line of any file but
    those of this package and of torch's tracer; None for what this package adds to a step, such as micro-batches.
    """
    frames = _frames(stack)
    own = [one for one in frames if is_own(one.file)]
    others = (one for one in frames if not one.file.startswith((_OURS, "<")) and not _TRACER.search(one.file))
    rest = own or list(others)
    return Location(rest[-1].file, rest[-1].line) if rest else None


def user_place(stack: str | None) -> Location | None:
    """The expression in the innermost line of the user's files, in torch's text of a stack."""
    own = [one for one in _frames(stack) if is_own(one.file)]
    return Location(own[-1].file, own[-1].line, own[-1].column) if own else None


def calling_line() -> Location | None:
    """The line of the user's code that calls this package."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and not is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else Location(frame.f_code.co_filename, frame.f_lineno)


def _code_of(called: Any) -> CodeType | None:
    """The code of a function, of a method or of a module's `forward`."""
    found = called.forward if hasattr(called, "forward") else called
    return getattr(inspect.unwrap(found), "__code__", None)


def line_of(called: Any) -> Location | None:
    """The line where the user's function, or the `forward` of the user's module, begins; else the line of the call."""
    code = _code_of(called)
    if code is not None and is_own(code.co_filename):
        return Location(code.co_filename, code.co_firstlineno)
    return calling_line()


# The arguments of a loss and of a model.


def require_own_loss(loss: Any) -> None:
    """Raises DiagnosticError (`torch-loss`) for a loss function of torch itself, which takes no model."""
    if getattr(loss, "__module__", None) != "torch.nn.functional":
        return
    name = _name(loss)
    message = f"the loss is called with the model and the tensors of the batch, and {name} of torch takes no model"
    instead = f"a loss is such as lambda model, x, y: functional.{name}(model(x), y)"
    raise DiagnosticError([error("torch-loss", message, calling_line(), notes=[Note(instead)])])


def require_arguments(model: Any, loss: Any, names: Sequence[str], is_mapping: bool) -> None:
    """Raises DiagnosticError (`torch-loss`) unless the loss, or the model if there is none, takes the tensors of a
    batch.
    """
    called = model if loss is None else loss
    try:
        takes = inspect.signature(called.forward if hasattr(called, "forward") else called)
    except (TypeError, ValueError):
        return
    first = [] if loss is None else [None]
    try:
        if is_mapping:
            takes.bind(*first, **dict.fromkeys(names))
        else:
            takes.bind(*first, *([None] * len(names)))
    except TypeError as problem:
        tensors = "tensor" if len(names) == 1 else quantity(len(names), "tensor")
        tensors += f" ({name_list(names)})" if is_mapping else ""
        if loss is None:
            given = f"the model is called with the {tensors} of the batch"
            instead = "loss=lambda model, x, y: ... says what of the batch the model takes, and what the loss is"
        else:
            given = f"the loss is called with the model and the {tensors} of the batch"
            instead = "a loss is such as lambda model, x, y: functional.cross_entropy(model(x), y)"
        who = f"{type(called).__name__}.forward" if hasattr(called, "forward") else _name(called)
        message = f"{given}, but {who} takes {_parameters(takes)}: {problem}"
        raise DiagnosticError([error("torch-loss", message, line_of(called), notes=[Note(instead)])]) from None


def _name(called: Any) -> str:
    name = str(getattr(called, "__name__", type(called).__name__))
    return "the lambda" if name == "<lambda>" else name


def _parameters(takes: inspect.Signature) -> str:
    return f"({', '.join(takes.parameters)})" if takes.parameters else "nothing"


# Models that torch refuses.


_RAISED = Pattern(r"raised exception (.+)", re.DOTALL)
"""Torch's words for an exception of the user's code."""

_DEPENDENT = Pattern(r"[Dd]ata-dependent (?:expression|branching|operator|jump)|data.dependent control flow")
"""Torch's words for code that needs a number which only a run knows."""

_UNSHAPED = Pattern(r"does not support running with fake tensors")
"""Torch's words for an operator that takes tensors with their numbers only."""

_WRAPPED = Pattern(r"data pointer of Tensor that doesn't have storage")
"""Torch's words for the tensors that a function has which is transformed."""

_GRADIENT = Pattern(r"Tensor\.backward\(\)|trace_autograd_ops")
"""Torch's words for code that calls `backward()` within the step."""

CALLED = Note('trace(..., step="torch") has torch make the step, with all that it does')
"""What is said of a model that torch itself must call."""

_FIXED = Pattern(r"Constraints violated.*specialized it to be a constant \((\d+)\)", re.DOTALL)
"""Torch's words for code that takes one number of rows only."""


def refusal(problems: Sequence[Exception], model: Any, loss: Any, tensor: str) -> Diagnostic:
    """The finding for torch's exceptions about a model that it can't export, one of each way to export it, at the
    user's line.

    `tensor` is the name of a tensor of the batch. The first exception is described, at a line that another one has if
    it has none itself.
    """
    text = str(problems[0])
    raised = (user_place("".join(traceback.format_exception(one))) for one in problems)
    place = user_place(text) or next((one for one in raised if one is not None), None)
    place = place or line_of(model if loss is None else loss)
    own = [one for one in _frames(text) if is_own(one.file)]
    focus = own[-1].code if own else ""
    if (fixed := _FIXED.search(text)) is not None:
        return _of_fixed_rows(int(fixed[1]), text, model, loss, tensor)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    what = lines[0] if lines else type(problems[0]).__name__
    if (made := _RAISED.search(text)) is not None:
        what = f"its code raises {made[1].splitlines()[0].strip()}"
    details = [line.removeprefix("Explanation:").strip() for line in lines if line.startswith("Explanation:")]
    if _UNSHAPED.search(text) is not None:
        what = "it calls an operator that torch has no rule of shapes for, such as one of sparse tensors"
    elif _WRAPPED.search(text) is not None:
        what = "it transforms a function, as torch.func.grad does, in a way that an export doesn't follow"
    elif _GRADIENT.search(lines[0] if lines else "") is not None:
        what = "it calls backward() within the step, which a graph has not"
        details = ["torch.autograd.grad(loss, tensors) gives gradients within a step, and is translated"]
    elif _DEPENDENT.search(text) is not None:
        what = "its code branches on a number that a run computes, or makes a size or a list of one"
        details = ["torch.where(condition, a, b) has both branches in a graph"]
    notes = [Note(detail) for detail in details[:1] if detail]
    called = [one for one in _frames(text) if not one.file.startswith((_OURS, "<")) and not _TRACER.search(one.file)]
    if called and not is_own(called[-1].file) and not _OF_TORCH.search(called[-1].file):
        line = linecache.getline(called[-1].file, called[-1].line).strip()
        notes.append(Note(f"the line is of a package: {line}", Location(called[-1].file, called[-1].line)))
    if "fake tensor" not in what:  # which says that the code itself fails
        notes.append(CALLED)
    return error("torch-export", f"torch can't export the model: {what}", place, focus=focus, notes=notes)


# Code for one number of rows.


_STACK = "User stack:"
"""Torch's words before each stack of a problem, one for each tensor whose rows are fixed."""

_RECURRENT = Pattern(r"[/\\]torch[/\\]nn[/\\]modules[/\\]rnn\.py$")
"""The file of torch's recurrent layers."""


def _of_fixed_rows(rows: int, text: str, model: Any, loss: Any, tensor: str) -> Diagnostic:
    """The finding for code that takes batches of `rows` rows only.

    Of the stacks in the text, that is taken which shows an expression with a fixed number of rows, else the first.
    """
    stacks = [_frames(part) for part in text.split(_STACK)[1:]] or [_frames(text)]
    shown = [(stack, own[-1]) for stack in stacks if (own := [one for one in stack if is_own(one.file)])]
    found = [(stack, frame, [*_fixed_in(rows, frame, model, loss)]) for stack, frame in shown]
    nothing: tuple[list[_StackFrame], _StackFrame | None, list[str]] = ([], None, [])
    stack, frame, fixed = next((one for one in found if one[2]), found[0] if found else nothing)
    place = (
        line_of(model if loss is None else loss) if frame is None else Location(frame.file, frame.line, frame.column)
    )
    focus = "" if frame is None else frame.code
    if not fixed and any(_RECURRENT.search(one.file) for one in stack):
        message = "this layer goes over the rows of the batch as over steps, and each rank has a share of the rows"
        instead = "a recurrent layer with batch_first=True takes rows first; one without takes x.transpose(0, 1)"
        return error("torch-export", message, place, focus=focus, notes=[Note(instead)])
    if fixed:
        what = f"{name_list(fixed)} {'has' if len(fixed) == 1 else 'have'} a fixed number of rows, {rows}"
    else:
        what = f"this code takes batches of {quantity(rows, 'row')} only"
    message = f"{what}; each rank has a share of the batch, and the share has fewer rows"
    size = f"{tensor}.shape[0]"
    instead = f"write the number of rows as that of the batch: {size} in place of {rows}, as in torch.arange({size})"
    other = "or make the tensor one of the batch, of which each rank has its share"
    if not fixed:
        other = "or write a loop over the rows, as `for row in x` or .tolist() make it, with operations on all rows"
    notes = [Note(instead), Note(other)]
    return error("torch-export", message, place, focus=focus, notes=notes)


def _fixed_in(rows: int, frame: _StackFrame, model: Any, loss: Any) -> Iterator[str]:
    """The expressions in the statement at a frame whose number of rows is fixed, as the user writes them."""
    source = "".join(linecache.getlines(frame.file))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    around = _function_at(tree, frame)
    statement = _innermost(around if around is not None else tree, frame.line)
    if statement is None:
        return
    held = _names_at(frame, model, loss)
    owner = held.get("self")
    made = _last_assignments(around, frame.line) if around is not None else {}
    told: set[str] = set()
    for node in ast.walk(statement):
        words = ""
        if isinstance(node, ast.Name) and node.id in made:
            line = _of_call(made[node.id], rows)
            words = f"{node.id} ({line}, line {made[node.id].lineno})" if line else ""
        elif isinstance(node, ast.Name) and _has_rows(held.get(node.id), rows):
            words = node.id
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self" and owner is not None:
            words = ast.unparse(node) if _has_rows(getattr(owner, node.attr, None), rows) else ""
        elif isinstance(node, ast.Call):
            words = _own_call(node, rows)
        if words and words not in told:
            told.add(words)
            yield words


def _own_call(node: ast.Call, rows: int) -> str:
    """A call with the number of rows among its arguments, as it is written; "" for another."""
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    parts = [one for arg in given for one in (arg.elts if isinstance(arg, ast.Tuple | ast.List) else [arg])]
    return ast.unparse(node) if any(isinstance(one, ast.Constant) and one.value == rows for one in parts) else ""


def _of_call(value: ast.expr, rows: int) -> str:
    """The first call in an expression with the number of rows among its arguments, as it is written."""
    calls = (_own_call(node, rows) for node in ast.walk(value) if isinstance(node, ast.Call))
    return next((words for words in calls if words), "")


def _function_at(tree: ast.AST, frame: _StackFrame) -> ast.AST | None:
    """The innermost function with the expression of a frame."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    places = ((one, (one.lineno, one.col_offset)) for one in ast.walk(tree) if isinstance(one, kinds))
    here = (frame.line, frame.column)
    found = [
        (begin, one)
        for one, begin in places
        if begin < here <= (one.end_lineno or 0, one.end_col_offset or 0)
        or (not frame.column and begin[0] <= frame.line <= (one.end_lineno or 0))
    ]
    return max(found, key=lambda pair: pair[0], default=((0, 0), None))[1]


def _innermost(tree: ast.AST, line: int) -> ast.AST | None:
    """The innermost statement with a line, or the function itself if it is a lambda."""
    if isinstance(tree, ast.Lambda):
        return tree.body
    found = [one for one in ast.walk(tree) if isinstance(one, ast.stmt) and one.lineno <= line <= (one.end_lineno or 0)]
    return max(found, key=lambda one: one.lineno, default=None)


def _last_assignments(function: ast.AST, line: int) -> dict[str, ast.expr]:
    """The expression that was assigned last, before a line, to each name of a function."""
    result: dict[str, ast.expr] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and (node.end_lineno or 0) < line:
            result |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
    return result


def _names_at(frame: _StackFrame, model: Any, loss: Any) -> Mapping[str, Any]:
    """The values of the names that the function at a frame takes from around it, and of `self`."""
    modules: Iterable[Any] = model.modules()
    for called in (*([] if loss is None else [loss]), *(one.forward for one in modules)):
        function = inspect.unwrap(called)
        code = getattr(function, "__code__", None)
        if code is None or code.co_filename != frame.file:
            continue
        if not any(frame.line == line for _, _, line in code.co_lines()):
            continue
        bare: Any = getattr(function, "__func__", function)
        cells = zip(code.co_freevars, cast("Iterable[Any]", bare.__closure__ or ()), strict=True)
        own = {"self": function.__self__} if hasattr(function, "__self__") else {}
        around = {**bare.__globals__, **{name: _content(cell) for name, cell in cells}}
        return {name: value for name, value in around.items() if name not in code.co_varnames} | own
    return {}


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the name has no value yet
        return None


def _has_rows(value: Any, rows: int) -> bool:
    """Whether a value is a tensor with this number of rows, but not a parameter."""
    if not hasattr(value, "detach") or type(value).__name__ == "Parameter":
        return False
    shape = tuple(cast("Iterable[int]", getattr(value, "shape", ())))
    return shape[:1] == (rows,)

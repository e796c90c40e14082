import json

import pytest

from pstranspile.frontends.meta import apply_meta, infer_parameters, parse_meta
from pstranspile.ir.diagnostics import DiagnosticError, Severity
from pstranspile.ir.model import Block, FrozenMap, Module, Op, ParameterInfo, Program, Var


def program(*names: str, ops: tuple[Op, ...] = (), temporary: tuple[str, ...] = ()) -> Program:
    variables = {name: Var(name, persistable=name not in temporary) for name in names}
    return Program((Block(FrozenMap(variables), ops),))


def module(**programs: Program) -> Module:
    return Module(FrozenMap(programs))


def applied(target: Module, **values) -> Module:
    result, warnings = apply_meta(target, parse_meta(json.dumps(values), "meta.json"))
    assert warnings == ()
    return result


def parameters(target: Program) -> dict[str, ParameterInfo]:
    return {var.name: var.parameter for var in target.parameters()}


BOTH = module(main=program("lr", "w", "b"), startup=program("lr", "b", "moment", "w"))


def test_parameters_of_both_programs():
    entry = {
        "name": "w",
        "trainable": False,
        "is_distributed": True,
        "learning_rate": 2,
        "regularizer": "L2Decay, regularization_coeff=0.1",
        "shape": [3],
    }
    result = applied(BOTH, params=[entry, {"name": "b"}], loss="ignored")
    expected = {
        "w": ParameterInfo(False, 2.0, True, "L2Decay, regularization_coeff=0.1"),
        "b": ParameterInfo(),
    }
    assert parameters(result.main) == expected
    assert result.startup is not None
    assert parameters(result.startup) == expected
    assert result.main.main_block.vars["lr"].parameter is None
    assert parameters(BOTH.main) == {}


@pytest.mark.parametrize(
    ("written", "kept"), [(None, None), ("l2", "l2"), (["l2", 0.1], '["l2", 0.1]'), ({"l1": 1}, '{"l1": 1}')]
)
def test_a_regularizer_may_be_written_in_any_way(written, kept):
    result = applied(BOTH, params=[{"name": "w", "regularizer": written}])
    assert parameters(result.main)["w"].regularizer == kept


def test_what_the_text_says_stays_where_the_meta_says_nothing():
    kept = ParameterInfo(trainable=False, learning_rate=0.5)
    main = Program((Block(FrozenMap(w=Var("w", persistable=True, parameter=kept))),), random_seed=7)
    result = applied(module(main=main), params=[{"name": "w", "learning_rate": 3.0}])
    assert parameters(result.main) == {"w": kept._replace(learning_rate=3.0)}
    assert result.main.random_seed == 7


def test_seed_of_both_programs():
    result = applied(BOTH, random_seed=90)
    assert [p.random_seed for p in result.programs.values()] == [90, 90]


def test_order_of_parameters_in_startup():
    result = applied(BOTH, params=[{"name": "w"}, {"name": "b"}], startup_parameter_order=["w", "b"])
    assert result.startup is not None
    assert list(result.startup.main_block.vars) == ["lr", "w", "moment", "b"]
    assert list(result.main.main_block.vars) == ["lr", "w", "b"]
    only_one = applied(BOTH, params=[{"name": "w"}, {"name": "b"}], startup_parameter_order=["w"])
    assert only_one.startup is not None
    assert list(only_one.startup.main_block.vars) == ["lr", "w", "moment", "b"]


def test_a_module_without_startup():
    result = applied(module(main=BOTH.main), random_seed=1, startup_parameter_order=["w", "b"])
    assert result.startup is None


def test_unknown_parameters_are_warned_of_once_each():
    meta = parse_meta(
        json.dumps({"params": [{"name": "fc_0.w0"}], "startup_parameter_order": ["fc_0.w0", "zzz"]}), "meta.json"
    )
    target = module(main=program("fc_0.w_0"), startup=program("fc_0.w_0"))
    result, warnings = apply_meta(target, meta)
    assert result == target
    assert [w.severity for w in warnings] == [Severity.WARNING] * 2
    assert "'fc_0.w0'; is 'fc_0.w_0' meant?" in warnings[0].message
    assert "'zzz'" in warnings[1].message


def refused(text: str):
    with pytest.raises(DiagnosticError) as raised:
        parse_meta(text, "meta.json")
    return raised.value.diagnostics


TYPE_CASES = {
    "params must be a list": {"params": {}},
    "params[1] must be an object": {"params": [{"name": "w"}, "b"]},
    "params[0].name must be the name": {"params": [{"trainable": True}]},
    "params[0].trainable must be true or false, it is 1": {"params": [{"name": "w", "trainable": 1}]},
    "params[0].is_distributed must be true or false, it is null": {"params": [{"name": "w", "is_distributed": None}]},
    "params[0].learning_rate must be a finite number, it is '1'": {"params": [{"name": "w", "learning_rate": "1"}]},
    "params[0].learning_rate must be a finite number, it is True": {"params": [{"name": "w", "learning_rate": True}]},
    "params[0].learning_rate must be a finite number, it is inf": {
        "params": [{"name": "w", "learning_rate": float("inf")}]
    },
    "params[0].learning_rate must be a finite number, it is a number": {
        "params": [{"name": "w", "learning_rate": 10**400}]
    },
    "random_seed must be an integer from 0 to 2147483647, it is '1'": {"random_seed": "1"},
    "random_seed must be an integer from 0 to 2147483647, it is True": {"random_seed": True},
    "random_seed must be an integer from 0 to 2147483647, it is -1": {"random_seed": -1},
    "random_seed must be an integer from 0 to 2147483647, it is 2147483648": {"random_seed": 1 << 31},
    "startup_parameter_order must be a list": {"startup_parameter_order": "w"},
    "startup_parameter_order[1] must be the name of a parameter, it is 3": {"startup_parameter_order": ["w", 3]},
}


@pytest.mark.parametrize(("message", "value"), TYPE_CASES.items(), ids=TYPE_CASES)
def test_wrong_types_name_the_key(message, value):
    (found,) = refused(json.dumps(value))
    assert found.code == "meta-type"
    assert found.message.startswith(message)


def test_several_findings_in_one_run():
    found = refused(json.dumps({"random_seed": [], "params": [3, {"name": "w", "trainable": 0}]}))
    assert [d.message.split(" must")[0] for d in found] == ["random_seed", "params[0]", "params[1].trainable"]


def test_names_given_twice():
    twice = {"params": [{"name": "w"}, {"name": "w"}], "startup_parameter_order": ["b", "b"]}
    found = refused(json.dumps(twice))
    assert [d.code for d in found] == ["meta-duplicate"] * 2
    assert "params[1].name" in found[0].message
    assert "startup_parameter_order[1]" in found[1].message


def test_text_that_is_no_json_object():
    (found,) = refused('{\n  "params": [,]\n}')
    assert (found.code, str(found.location)) == ("meta-json", "meta.json:2:14")
    assert refused("[1]")[0].message == "the file must hold an object ({...}), it holds a list"
    assert refused("")[0].code == "meta-json"
    assert "nested too deeply" in refused("[" * 100_000)[0].message
    assert refused('{"random_seed": 1' + "0" * 5000 + "}")[0].code in ("meta-json", "meta-type")


def test_parameters_are_inferred_from_their_use():
    update = Op("sgd", FrozenMap(Param=("w",), Grad=("g",)), role_vars=())
    backward = Op("mul_grad", role_vars=("b", "b@GRAD", "fed", "fed@GRAD"))
    block = program("lr", "w", "b", "fed", ops=(backward,), temporary=("fed",)).main_block
    main = Program((block, Block(ops=(update,), parent=0)))
    result = infer_parameters(module(main=main, startup=program("w", "lr", "b")))
    assert parameters(result.main) == {"w": ParameterInfo(), "b": ParameterInfo()}
    assert result.startup is not None
    assert parameters(result.startup) == {"w": ParameterInfo(), "b": ParameterInfo()}


def test_inference_keeps_what_is_known():
    known = ParameterInfo(trainable=False)
    main = Program((Block(FrozenMap(w=Var("w", persistable=True, parameter=known))),))
    assert infer_parameters(module(main=main)) == module(main=main)
    assert infer_parameters(module(other=main)) == module(other=main)

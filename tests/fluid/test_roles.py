"""Role makers and strategies of Fleet."""

from __future__ import annotations

import pytest

from pstranspile.fluid.incubate.fleet.base import (
    GeneralRoleMaker,
    PaddleCloudRoleMaker,
    Role,
    UserDefinedCollectiveRoleMaker,
    UserDefinedRoleMaker,
)
from pstranspile.fluid.incubate.fleet.collective import DistributedStrategy as CollectiveStrategy
from pstranspile.fluid.incubate.fleet.collective import fleet as collective_fleet
from pstranspile.fluid.incubate.fleet.parameter_server import (
    AsyncStrategy,
    DistributedTranspiler,
    GeoStrategy,
    HalfAsyncStrategy,
    StrategyFactory,
    SyncStrategy,
    strategy_of,
)
from pstranspile.fluid.transpiler import DistributeTranspilerConfig

SERVERS = ["a:1", "b:2"]


def test_roles_that_a_script_gives() -> None:
    server = UserDefinedRoleMaker(1, Role.SERVER, 3, SERVERS)
    assert (server.is_server(), server.server_index(), server.worker_num(), server.server_num()) == (True, 1, 3, 2)
    worker = UserDefinedRoleMaker(0, Role.WORKER, 3, SERVERS)
    assert worker.is_first_worker()
    assert worker.get_pserver_endpoints() == SERVERS
    assert UserDefinedCollectiveRoleMaker(1, SERVERS).worker_num() == 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, Role.WORKER, 1, "a:1"), TypeError, "server_endpoints is a list"),
        ((0, Role.WORKER, 1, []), ValueError, "at least one"),
        ((0, Role.WORKER, 1, ["a:1", "a:1"]), ValueError, "twice"),
        ((0, 7, 1, SERVERS), TypeError, "Role.WORKER or Role.SERVER"),
        ((-1, Role.WORKER, 1, SERVERS), ValueError, "current_id must be at least 0"),
        (("0", Role.WORKER, 1, SERVERS), TypeError, "current_id is a whole number"),
        ((2, Role.SERVER, 1, SERVERS), ValueError, "there are 2 of that role"),
        ((3, Role.WORKER, 3, SERVERS), ValueError, "there are 3 of that role"),
        ((0, Role.WORKER, 0, SERVERS), ValueError, "worker_num must be at least 1"),
    ],
)
def test_roles_that_can_not_be(arguments: tuple[object, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        UserDefinedRoleMaker(*arguments)  # type: ignore[arg-type]


def test_roles_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PADDLE_PSERVERS_IP_PORT_LIST", raising=False)
    with pytest.raises(ValueError, match="no PADDLE_PSERVERS_IP_PORT_LIST"):
        PaddleCloudRoleMaker().generate_role()
    for name, value in {
        "PADDLE_PSERVERS_IP_PORT_LIST": "a:1, b:2",
        "PADDLE_TRAINERS_NUM": "4",
        "TRAINING_ROLE": "PSERVER",
        "POD_IP": "b",
        "PADDLE_PORT": "2",
    }.items():
        monkeypatch.setenv(name, value)
    assert PaddleCloudRoleMaker().server_index() == 1
    monkeypatch.setenv("PADDLE_PORT", "3")
    with pytest.raises(ValueError, match=r"b:3 .* is not in"):
        PaddleCloudRoleMaker().generate_role()
    monkeypatch.setenv("TRAINING_ROLE", "TRAINER")
    monkeypatch.setenv("PADDLE_TRAINER_ID", "3")
    role = GeneralRoleMaker()
    assert (role.worker_index(), role.worker_num(), role.is_server()) == (3, 4, False)
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", "a:1,b:2")
    assert PaddleCloudRoleMaker(is_collective=True).get_trainer_endpoints() == SERVERS


def test_configs_become_strategies() -> None:
    made = strategy_of(DistributeTranspilerConfig(sync_mode=False, runtime_split_send_recv=True, geo_sgd_mode=True))
    assert isinstance(made, GeoStrategy)
    assert isinstance(strategy_of(DistributeTranspilerConfig()), SyncStrategy)
    assert isinstance(
        strategy_of(DistributeTranspilerConfig(sync_mode=False, runtime_split_send_recv=True)), AsyncStrategy
    )
    assert isinstance(strategy_of(DistributeTranspilerConfig(sync_mode=False)), HalfAsyncStrategy)
    with pytest.raises(TypeError, match="a strategy is one of StrategyFactory"):
        strategy_of("sync")
    geo = StrategyFactory.create_geo_strategy(7)
    geo.set_program_config({"min_block_size": 100})
    assert (geo.get_program_config().geo_sgd_need_push_nums, geo.get_program_config().min_block_size) == (7, 100)
    with pytest.raises(ValueError, match="did you mean min_block_size"):
        geo.set_program_config({"min_block_siz": 100})
    with pytest.raises(AttributeError, match="did you mean use_local_sgd"):
        setattr(CollectiveStrategy(), "use_local_sdg", True)  # noqa: B010


def test_what_must_come_first() -> None:
    fleet = DistributedTranspiler()
    with pytest.raises(RuntimeError, match=r"fleet\.init"):
        fleet.is_worker()
    fleet.init(UserDefinedRoleMaker(0, Role.WORKER, 2, SERVERS))
    with pytest.raises(RuntimeError, match="is for servers"):
        fleet.run_server()
    with pytest.raises(RuntimeError, match="comes after minimize"):
        fleet.init_worker()
    assert fleet.split_files(["a", "b", "c"]) == ["a", "b"]


@pytest.mark.parametrize("call", ["init_server", "run_server"])
def test_fleet_without_servers_warns_and_goes_on_as_in_fluid(call: str) -> None:
    with pytest.warns(UserWarning, match=f"{call} does nothing: Fleet in collective mode has no servers") as warned:
        assert getattr(collective_fleet, call)() is None
    assert warned[0].filename == __file__

"""Jobs: what is accepted, what it means, and how what is wrong is said."""

import dataclasses
import json
import os
import random

import pytest

from pstranspile.compiler.job import DEFAULTS, Job, JobError, job_warnings, parse_endpoint
from pstranspile.compiler.job.file import load_job, parse_setting
from pstranspile.compiler.job.modes import SWITCHES, mode_names, settings_of

SERVERS = ["a:6174", "b:6174"]
TRAINERS = ["a:7164", "b:7164", "c:7164", "d:7164"]


def errors(**values):
    with pytest.raises(JobError) as caught:
        Job(**values)
    return [(d.code, d.focus) for d in caught.value.diagnostics]


def test_defaults_are_those_of_fluid():
    job = Job(SERVERS)
    assert (job.mode, job.trainers, job.sync_mode) == ("sync", 1, True)
    assert (job.slice_var_up, job.split_method, job.min_block_size) == (True, "RoundRobin", 8192)
    assert (job.geo_sgd_need_push_nums, job.nccl_comm_num, job.wait_port) == (100, 1, True)
    assert not any(getattr(job, key) for key in SWITCHES if key != "sync_mode")
    assert {key: getattr(job, key) for key in DEFAULTS} == DEFAULTS


def test_is_frozen_and_comparable():
    job = Job(SERVERS, 2, mode="sync")
    with pytest.raises(dataclasses.FrozenInstanceError):
        job.trainers = 3
    assert job == Job("a:6174, b:6174", "2")
    assert hash(job) == hash(Job(tuple(SERVERS), 2))
    assert job != Job(SERVERS, 3)


@pytest.mark.parametrize("mode", mode_names())
def test_a_named_mode_survives_its_dict(mode):
    servers = settings_of(mode).servers
    job = Job(SERVERS if servers else None, 2 if servers else TRAINERS, mode=mode)
    assert job.mode == mode
    assert Job(**job.as_dict()) == job
    assert Job(**json.loads(json.dumps(job.as_dict()))) == job


GIVEN = [
    {},
    {"allow": ["no-program", "unknown-op"], "strict": True, "wait_port": False},
    {"sync_mode": False, "runtime_split_send_recv": True},
    {"min_block_size": 1, "large_tables": ["words enter_after=3"]},
    {"split_method": "HashName", "slice_var_up": False, "current_endpoint": "a:6174"},
]


@pytest.mark.parametrize("mode", mode_names())
def test_a_job_is_shown_as_its_file(mode, tmp_path):
    servers = settings_of(mode).servers
    for trainers in (1, 3, TRAINERS):
        job = Job(SERVERS if servers else None, trainers, mode=mode)
        (tmp_path / "job.toml").write_text(f"{job}\n")
        assert load_job(tmp_path / "job.toml") == job
    assert f'mode = "{mode}"' in str(job)
    assert len(str(job).splitlines()) <= 3


def test_a_job_is_shown_with_what_is_not_at_its_default(tmp_path):
    assert str(Job(2, 2)) == 'pservers = ["127.0.0.1:6174", "127.0.0.1:6175"]\ntrainers = 2\nmode = "sync"'
    for given in GIVEN:
        job = Job(SERVERS, 2, **given)
        (tmp_path / "job.toml").write_text(str(job))
        assert load_job(tmp_path / "job.toml") == job
        assert all(key in str(job) for key in given if key not in SWITCHES)


SWITCHES_OF_RECORDED_JOBS = [
    ({}, "sync"),
    ({"sync_mode": True}, "sync"),
    ({"mode": "pserver", "sync_mode": True}, "sync"),
    ({"sync_mode": False}, "async"),
    ({"sync_mode": False, "runtime_split_send_recv": True}, "async"),
    ({"sync_mode": False, "runtime_split_send_recv": True, "half_async": True}, "half-async"),
    ({"sync_mode": False, "half_async": True}, "half-async"),
    (
        {
            "sync_mode": False,
            "runtime_split_send_recv": True,
            "half_async": True,
            "completely_not_async": True,
        },
        "fleet-sync",
    ),
    ({"sync_mode": False, "runtime_split_send_recv": True, "completely_not_async": True}, "fleet-sync"),
    ({"sync_mode": False, "completely_not_async": True}, "sync"),
    ({"sync_mode": False, "runtime_split_send_recv": True, "geo_sgd_mode": True}, "geo"),
    ({"geo_sgd_mode": True}, "geo"),
]


@pytest.mark.parametrize(("switches", "mode"), SWITCHES_OF_RECORDED_JOBS)
def test_switches_choose_the_mode(switches, mode):
    job = Job(SERVERS, 2, **switches)
    assert job.mode == mode
    assert job.runtime_split_send_recv == switches.get("runtime_split_send_recv", False)
    assert job.sync_mode == (mode == "sync")


@pytest.mark.parametrize(
    ("values", "mode"),
    [
        ({"mode": "nccl2", "sync_mode": True}, "nccl2"),
        ({"mode": "collective", "collective_mode": "grad_allreduce", "sync_mode": True}, "grad-allreduce"),
        ({"mode": "collective", "collective_mode": "local_sgd"}, "local-sgd"),
        ({"collective_mode": "single_process_multi_thread"}, "single-process-multi-thread"),
    ],
)
def test_modes_without_servers(values, mode):
    job = Job(trainers=TRAINERS, **values)
    assert (job.mode, job.trainers, job.trainer_endpoints) == (mode, 4, tuple(TRAINERS))


def test_every_combination_of_switches_means_one_mode_or_is_refused():
    generator = random.Random(0)
    keys = [*SWITCHES, "mode", "collective_mode"]
    choices = {key: [None, True, False] for key in SWITCHES}
    choices |= {"mode": [None, "pserver", *mode_names()], "collective_mode": [None, None, "local_sgd"]}
    accepted = refused = 0
    named = set()
    for _ in range(3000):
        values = {key: generator.choice(choices[key]) for key in keys}
        values = {key: value for key, value in values.items() if value is not None}
        try:
            job = Job(pservers=SERVERS, trainers=2, **values)
        except JobError as problem:
            refused += 1
            named |= {d.focus for d in problem.diagnostics}
            continue
        accepted += 1
        fixed = {key: getattr(job, key) for key in settings_of(job.mode).flags}
        assert fixed == settings_of(job.mode).flags
        assert values.get("mode", job.mode) in (job.mode, "pserver")
    assert named <= {*keys, "pservers", "trainers"}
    assert accepted > 100
    assert refused > 100


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({}, ("job-missing", "pservers")),
        ({"pservers": []}, ("job-missing", "pservers")),
        ({"pservers": ""}, ("job-missing", "pservers")),
        ({"pservers": 0}, ("job-value", "pservers")),
        ({"pservers": 10**6}, ("job-value", "pservers")),
        ({"pservers": ["a:1", "a:1"]}, ("job-endpoint", "pservers")),
        ({"pservers": ["a:1", "A:01"]}, ("job-endpoint", "pservers")),
        ({"pservers": "a:1,,b:1"}, ("job-endpoint", "pservers")),
        ({"pservers": 2, "trainers": 0}, ("job-value", "trainers")),
        ({"pservers": 2, "trainers": -2}, ("job-value", "trainers")),
        ({"pservers": 2, "trainers": "-2"}, ("job-value", "trainers")),
        ({"pservers": 2, "trainers": "9" * 4000}, ("job-value", "trainers")),
        ({"pservers": 2, "trainers": []}, ("job-value", "trainers")),
        ({"pservers": 2, "trainers": "two"}, ("job-endpoint", "trainers")),
        ({"pservers": 2, "trainers": 2.0}, ("job-type", "trainers")),
        ({"pservers": 2, "trainers": True}, ("job-type", "trainers")),
        ({"pservers": 2, "trainers": ["a:1", 2]}, ("job-type", "trainers")),
        ({"pservers": ["a:1"], "trainers": ["a:1"]}, ("job-endpoint", "trainers")),
        ({"pservers": 2, "trainer_endpoints": "3"}, ("job-type", "trainer_endpoints")),
        ({"pservers": 2, "trainers": 3, "trainer_endpoints": TRAINERS}, ("job-conflict", "trainer_endpoints")),
        ({"pservers": 2, "trainers": 2, "trainer_id": 2}, ("job-value", "trainer_id")),
        ({"pservers": 2, "trainers": 2, "trainer_id": -1}, ("job-value", "trainer_id")),
        ({"pservers": 2, "trainers": 1_000_000}, ("job-value", "trainers")),
        ({"pservers": 1_000_000}, ("job-value", "pservers")),
        ({"pservers": 2, "nccl_comm_num": 4_000_000_000}, ("job-value", "nccl_comm_num")),
        ({"pservers": 2, "geo_sgd_need_push_nums": 10**30}, ("job-value", "geo_sgd_need_push_nums")),
        ({"pservers": 2, "split_method": "x" * 10**6}, ("job-value", "split_method")),
        ({"pservers": "a" * 10**6 + ":1"}, ("job-endpoint", "pservers")),
        ({"pservers": 2, "min_block_size": 0}, ("job-value", "min_block_size")),
        ({"pservers": 2, "min_block_size": True}, ("job-type", "min_block_size")),
        ({"pservers": 2, "min_block_size": "8192"}, ("job-type", "min_block_size")),
        ({"pservers": 2, "slice_var_up": 1}, ("job-type", "slice_var_up")),
        ({"pservers": 2, "split_method": "roundrobin"}, ("job-value", "split_method")),
        ({"pservers": 2, "split_method": "module:Class.Inner"}, ("job-value", "split_method")),
        ({"pservers": 2, "split_method": "my module:Class"}, ("job-value", "split_method")),
        ({"pservers": 2, "current_endpoint": "here"}, ("job-endpoint", "current_endpoint")),
        ({"pservers": 2, "mode": "snyc"}, ("job-value", "mode")),
        ({"pservers": 2, "mode": "sync", "sync_mode": False}, ("job-conflict", "sync_mode")),
        ({"pservers": 2, "mode": "async", "half_async": True}, ("job-conflict", "half_async")),
        ({"pservers": 2, "sync_mode": True, "runtime_split_send_recv": True}, ("job-conflict", "sync_mode")),
        ({"pservers": 2, "sync_mode": True, "geo_sgd_mode": True}, ("job-conflict", "sync_mode")),
        ({"pservers": 2, "half_async": True, "geo_sgd_mode": True}, ("job-conflict", "half_async")),
        ({"pservers": 2, "mode": "geo", "collective_mode": "local_sgd"}, ("job-conflict", "collective_mode")),
        ({"trainers": TRAINERS, "mode": "collective"}, ("job-conflict", "collective_mode")),
        ({"trainers": TRAINERS, "collective_mode": "all"}, ("job-conflict", "collective_mode")),
        ({"trainers": TRAINERS, "mode": "nccl2", "pservers": 2}, ("job-conflict", "pservers")),
        ({"trainers": TRAINERS, "mode": "nccl2", "sync_mode": False}, ("job-conflict", "sync_mode")),
        ({"mode": "nccl2"}, ("job-missing", "trainers")),
        ({"trainers": 0, "mode": "nccl2"}, ("job-value", "trainers")),
        ({"trainers": 2, "mode": "nccl2", "trainer_endpoints": "a:1"}, ("job-conflict", "trainer_endpoints")),
        ({"trainers": TRAINERS, "mode": "nccl2", "current_endpoint": "z:9"}, ("job-value", "current_endpoint")),
        (
            {"trainers": TRAINERS, "mode": "nccl2", "use_hierarchical_allreduce": True},
            ("job-value", "hierarchical_allreduce_inter_nranks"),
        ),
    ],
)
def test_what_is_wrong_is_said_by_key(values, found):
    assert errors(**values) == [found]


def test_all_mistakes_at_once():
    found = errors(pservers="a:1,a:1,b", trainers=0, min_block_size=-1)
    assert found == [
        ("job-value", "min_block_size"),
        ("job-endpoint", "pservers"),
        ("job-endpoint", "pservers"),
        ("job-value", "trainers"),
    ]


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        (" a:6174 ", "a:6174"),
        ("127.0.0.1:06174", "127.0.0.1:6174"),
        ("[::1]:1", "[::1]:1"),
        ("[0:0:0:0:0:0:0:1]:65535", "[::1]:65535"),
        ("ps-0.cluster_1.local:80", "ps-0.cluster_1.local:80"),
    ],
)
def test_endpoints(text, endpoint):
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a:",
        ":1",
        "a:0",
        "a:65536",
        "a:-1",
        "a:1x",
        "a:²",
        "a b:1",
        "::1:80",
        "[::g]:1",
        "[]:1",
        "a:" + "9" * 5000,
    ],
)
def test_malformed_endpoints(text):
    with pytest.raises(ValueError):
        parse_endpoint(text)


def test_small_blocks_are_accepted():
    assert Job(SERVERS, min_block_size=1).min_block_size == 1


def test_own_dispatcher():
    assert Job(SERVERS, split_method="my.package:Even").split_method == "my.package:Even"


def test_options_without_effect_are_mentioned():
    job = Job(SERVERS, 2, geo_sgd_need_push_nums=5, nccl_comm_num=2, enable_dc_asgd=True)
    assert [d.focus for d in job_warnings(job)] == ["enable_dc_asgd", "geo_sgd_need_push_nums", "nccl_comm_num"]
    assert job_warnings(Job(SERVERS, 2)) == ()
    assert [d.focus for d in job_warnings(Job(SERVERS, 2, completely_not_async=True))] == ["completely_not_async"]


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_toml_and_json_say_the_same(tmp_path):
    toml = write(tmp_path, "job.toml", 'pservers = ["a:1", "b:1"]\ntrainers = 2\nslice_var_up = false\n')
    json_ = write(tmp_path, "job.json", '{"pservers": "a:1,b:1", "trainers": 2, "slice_var_up": false}')
    bare = write(tmp_path, "job", '{"pservers": "a:1,b:1", "trainers": 2, "slice_var_up": false}')
    want = Job(["a:1", "b:1"], 2, slice_var_up=False)
    assert load_job(toml) == load_job(json_) == load_job(bare) == want


def test_options_override_the_file(tmp_path):
    path = write(tmp_path, "job.toml", "pservers = 2\ntrainers = 2\ngeo_sgd_mode = true\nmin_block_size = 9000\n")
    job = load_job(path, {"mode": "sync", "trainers": "4"})
    assert (job.mode, job.trainers, job.min_block_size) == ("sync", 4, 9000)
    assert load_job(path).mode == "geo"
    listed = write(tmp_path, "listed.toml", 'pservers = 2\ntrainer_endpoints = ["c:1", "d:1"]\n')
    assert load_job(listed).trainers == 2
    assert load_job(listed, {"trainers": 3}).trainers == 3


@pytest.mark.parametrize(
    ("name", "text", "marked"),
    [
        ("job.toml", 'pservers = ["a:1", "b:99999999"]\n', ["b:99999999"]),
        ("job.toml", 'pservers = [ # two\n  "a:1",\n  "b", # no port\n]\n', ["b"]),
        ("job.toml", 'pservers = "a:1, b ,c:3"\ntrainers = "abc"\n', ["b", "abc"]),
        ("job.toml", 'pservers = "a:1,,b:1"\n', ["a:1,,b:1"]),
        ("job.toml", "pservers = ['a:1', 'b:1', 'a:1'] # twice\n", ["a:1"]),
        ("job.json", '{"pservers": ["a:1",\n 7]}', ["7"]),
        ("job.json", '{"pservers": ["ps1:1", "ps1"], "wait_port": "yes"}', ["yes"]),
        ("job.toml", 'pservers = 2\nmode = "sinc"\nmin_block_size = 0 # small\n', ["0", "sinc"]),
        ("job.toml", 'pservers = 2\nlarge_tables = ["a", "b", "a"]\n', ["a"]),
        ("job.toml", "pservers = 2\ntrainer = 2\n", ["trainer"]),
        ("job.toml", "pservers = 2\ntrainers = []\n", ["[]"]),
        ("job.toml", 'pservers = 2\nsplit_method = "module:Class"\n', ["module:Class"]),
    ],
)
def test_what_is_wrong_in_a_file_is_marked(tmp_path, name, text, marked):
    """A value, an item of a list or of a text with commas, or a key; the second of what stands there twice."""
    path = write(tmp_path, name, text)
    with pytest.raises(JobError) as caught:
        load_job(path)
    found = []
    for finding in caught.value.diagnostics:
        line = text.splitlines()[finding.location.line - 1]
        found.append(line[finding.location.column - 1 :][: len(finding.focus)])
        assert found[-1] == finding.focus
    assert sorted(found) == sorted(marked)
    if marked == ["a:1"]:
        assert caught.value.diagnostics[0].location.column == text.rindex("a:1") + 1


@pytest.mark.parametrize(
    ("name", "text", "code", "line", "says"),
    [
        ("job.toml", 'pservers = "a:1"\ntrainer = 2\n', "job-unknown-key", 2, "did you mean trainers?"),
        ("job.json", '{\n "pservers": 1,\n "xyzzy": 2}', "job-unknown-key", 3, "the keys are pservers"),
        ("job.toml", 'pservers = "a:1"\n\ntrainers = 0\n', "job-value", 3, "at least 1"),
        ("job.json", '{"pservers": "a:1",\n "sync_mode": "yes"}', "job-type", 2, "true or false"),
        (
            "job.toml",
            'pservers = ["a:1", 5]',
            "job-type",
            1,
            "pservers takes strings, but number 2 of its 2 is 5 (int)",
        ),
        ("job.toml", "pservers = \n", "job-file", 1, "TOML"),
        ("job.toml", 'pservers = 2\ntrainers = "2', "job-file", 2, "a text begins that does not end"),
        ("job.toml", "pservers = 2\nmode = 'sync'\npservers = 3\n", "job-file", 3, "this key stands twice"),
        (
            "job.toml",
            "# mine\n[job]\npservers = 2\n",
            "job-unknown-key",
            2,
            "no tables, such as 'job'; its keys stand at",
        ),
        ("job.json", '{"pservers": 1,\n  x}', "job-file", 2, "JSON"),
        ("job.json", '{"trainers": 1,\n "trainers": 2}', "job-file", 1, "twice"),
        ("job.json", "[1, 2]", "job-file", 1, "table"),
        ("job.json", "[" * 100000, "job-file", 0, "deep"),
        ("job.toml", "pservers = 2\n" + ".".join("a" * 50_000) + " = 1\n", "job-file", 2, "deep"),
        ("job.toml", "x = 1\ny = { " + ' . "b c" . '.join("a" * 400) + " = 1 }\n", "job-file", 2, "deep"),
        ("job.toml", "pservers = 2\n[" + ".".join("a" * 50_000) + "]\n", "job-file", 2, "deep"),
        ("job.json", '{"trainers": ' + "9" * 5000 + "}", "job-file", 0, "not valid JSON: a number has thousands"),
        ("job.toml", "trainers = " + "9" * 5000 + "\n", "job-file", 0, "not valid TOML: a number has thousands"),
        ("job.toml", "pservers = 2\ntrainers = 0x" + "f" * 9000 + "\n", "job-value", 2, "a number of 36000 bits"),
        ("job.toml", "pservers = 2\ntrainers = " + "[" * 300 + "]" * 300, "job-type", 2, "a list of 1"),
        ("job.json", '{"pservers": 2, "wait_port": ' + '{"a": ' * 400 + "1" + "}" * 401, "job-type", 1, "a table of 1"),
        ("job.toml", "pservers = 2\n" + "\n" * 3000 + "trainer = 2\n", "job-unknown-key", 3002, "mean trainers?"),
        ("job.toml", "pservers = 2\n" + "a" * 100_000 + " = 2\n", "job-unknown-key", 2, "a job has no key 'aaa"),
        ("job.toml", 'pservers = 2\nsplit_method = "module:Class"\n', "job-code", 2, "--trust-code"),
    ],
)
def test_errors_in_files_have_a_place(tmp_path, name, text, code, line, says):
    path = write(tmp_path, name, text)
    with pytest.raises(JobError) as caught:
        load_job(path)
    (found,) = caught.value.diagnostics
    assert (found.code, found.location.line, found.location.file) == (code, line, str(path))
    assert says in found.message


@pytest.mark.parametrize("content", [b"\xff\xfe\x00junk", b"pservers = \x00"])
def test_binary_files(tmp_path, content):
    path = tmp_path / "job.toml"
    path.write_bytes(content)
    with pytest.raises(JobError) as caught:
        load_job(path)
    assert caught.value.diagnostics[0].code == "job-file"


def test_missing_file(tmp_path):
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(JobError) as caught:
            load_job(path)
        assert caught.value.diagnostics[0].code == "job-file"


def test_a_trusted_file_may_name_code(tmp_path):
    path = write(tmp_path, "job.toml", 'pservers = 2\nsplit_method = "module:Class"\n')
    assert load_job(path, trust_code=True).split_method == "module:Class"
    assert load_job(path, {"split_method": "HashName"}).split_method == "HashName"
    assert load_job(path, {"split_method": "mine:Own"}).split_method == "mine:Own"


@pytest.mark.parametrize("name", ["job.toml", "job.json"])
def test_many_mistakes_are_not_all_told(tmp_path, name):
    keys = [f"key_{number}" for number in range(5000)]
    text = json.dumps(dict.fromkeys(keys, 1)) if name == "job.json" else "".join(f"{key} = 1\n" for key in keys)
    with pytest.raises(JobError) as caught:
        load_job(write(tmp_path, name, text))
    assert len(caught.value.diagnostics) == 20
    assert "these are the first ones" in caught.value.diagnostics[-1].notes[0].message


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="there is no /dev/zero")
def test_a_device_is_no_job_file():
    with pytest.raises(JobError, match="it is a pipe or a device"):
        load_job("/dev/zero")


def test_settings():
    assert parse_setting("slice_var_up=False") == ("slice_var_up", False)
    assert parse_setting(" min_block_size = 100 ") == ("min_block_size", 100)
    assert parse_setting("split_method=m:C") == ("split_method", "m:C")
    assert parse_setting("pservers=a:1,b:1") == ("pservers", "a:1,b:1")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("slice_var_up", "job-value"),
        ("=3", "job-value"),
        ("slice_var=1", "job-unknown-key"),
        ("slice_var_up=1", "job-type"),
        ("min_block_size=8k", "job-type"),
        ("min_block_size=" + "9" * 5000, "job-type"),
    ],
)
def test_wrong_settings(text, code):
    with pytest.raises(JobError) as caught:
        parse_setting(text)
    assert [d.code for d in caught.value.diagnostics] == [code]


@pytest.mark.parametrize("mode", ["nccl2", "grad-allreduce", "ddp", "local-sgd", "single-process-multi-thread"])
@pytest.mark.parametrize("trainers", [3, "3", 1])
def test_a_number_of_trainers_without_servers_stands_for_endpoints_of_this_machine(mode: str, trainers: int | str):
    """As a number of servers does; the plan shows them."""
    made = Job(mode=mode, trainers=trainers)
    endpoints = tuple(f"127.0.0.1:{6174 + index}" for index in range(int(trainers)))
    assert made.trainer_endpoints == endpoints
    assert made == Job(mode=mode, trainers=endpoints)
    given = [f"h:{index + 1}" for index in range(int(trainers))]
    assert Job(mode=mode, trainers=trainers, trainer_endpoints=given).trainer_endpoints == tuple(given)


def test_a_number_of_trainers_with_servers_stands_for_no_endpoints():
    assert Job(pservers=2, trainers=2).trainer_endpoints == ()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("a:1;b:2", "pservers: 'a:1;b:2': endpoints are separated by commas; write a:1,b:2"),
        ("a:1 b:2", "pservers: 'a:1 b:2': endpoints are separated by commas; write a:1,b:2"),
        ("1::2", "pservers: '1::2': an IPv6 address stands in brackets, as in [::1]:6174"),
        ("ps0", "pservers: 'ps0' is neither a number nor of the form host:port; did you mean ps0:6174?"),
        ("ps0,ps1:6174", "pservers: 'ps0' lacks its port: write host:port; did you mean ps0:6174?"),
    ],
)
def test_what_is_wrong_with_endpoints(given: str, told: str):
    with pytest.raises(JobError) as problem:
        Job(pservers=given)
    assert problem.value.diagnostics[0].message == told

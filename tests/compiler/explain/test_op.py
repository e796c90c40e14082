"""Why an op is there, and what it pairs with: the other side of every message."""

from collections.abc import Iterable

import pytest

from pstranspile.compiler.explain import ExplainedJob, OpAnswer, UnknownNameError, answer_json, answer_text, explain_op
from pstranspile.compiler.explain.answers import OpPosition
from pstranspile.compiler.explain.job import sent_by
from pstranspile.ir.model import Op
from tests.compiler.explain.jobs import ALL, explained


def places(job: ExplainedJob, kind: str, machines: Iterable[str] | None = None) -> list[OpPosition]:
    """All ops of a type."""
    return [place for m in machines or job.machines for place in job.places(m) if job.op(place).type == kind]


def ask(job: ExplainedJob, place: OpPosition) -> OpAnswer:
    return explain_op(job, place.machine, f"@{place.program}^{place.block}#{place.number}")


def linked(job: ExplainedJob, place: OpPosition) -> list[tuple[str, Op]]:
    """Machine and op of every pair."""
    return [(link.place.machine, job.op(link.place)) for link in ask(job, place).links]


@pytest.mark.parametrize("name", ALL)
def test_every_message_has_another_side(name: str):
    job = explained(name)
    talks = ("send", "recv", "send_barrier", "fetch_barrier", "prefetch", "distributed_lookup_table", "listen_and_serv")
    for kind in talks:
        for place in places(job, kind):
            answer = ask(job, place)
            if answer.rule in ("communicator-barrier", "begin-exchange"):
                continue  # they are between a trainer and its own communicator
            others = {link.place.machine for link in answer.links} - {place.machine}
            assert others, answer_text(answer)
            for link in answer.links:
                assert link.text
    for server in job.servers.values():
        for place in job.places(server):
            if place.program == "main" and place.block > 0 and ask(job, place).rule in ("update-slice", "add-change"):
                kinds = {machine.partition("_")[0] for machine, _ in linked(job, place)}
                assert "trainer" in kinds or not job.op(place).input("Param"), place


@pytest.mark.parametrize("name", ALL)
def test_pairs_of_sends_are_mutual(name: str):
    job = explained(name)
    for place in places(job, "send"):
        names = {name for _, name in sent_by(job.op(place))}
        for link in ask(job, place).links:
            if link.place.block > 0 and names.intersection(job.op(link.place).input_names):
                assert place in [back.place for back in ask(job, link.place).links]


def test_a_cut_gradient_is_told_from_end_to_end():
    job = explained("sync")
    (split,) = places(job, "split_byref", ["trainer_0"])
    answer = ask(job, split)
    assert answer.rule == "split-gradient"
    assert answer.source is not None
    assert answer.source.text is not None
    assert answer.source.text.startswith("mul_grad(")
    assert [op.type for _, op in linked(job, split)] == ["send", "concat"]
    send = next(link.place for link in answer.links if job.op(link.place).type == "send")
    assert [op.type for _, op in linked(job, send)] == [
        "split_byref",
        *["listen_and_serv", "sum", "adam"] * 2,
    ]
    update = next(link.place for link in ask(job, send).links if job.op(link.place).type == "adam")
    kinds = [(m.partition("_")[0], op.type) for m, op in linked(job, update)]
    assert kinds == [("trainer", "recv"), ("trainer", "recv"), ("pserver", "adam")]
    fetch = ask(job, update).links[0].place
    assert [op.type for _, op in linked(job, fetch)] == ["adam", "adam", "concat"]


def test_barriers_name_the_fan_in_and_the_other_trainers():
    job = explained("sync")
    (barrier,) = places(job, "send_barrier", ["trainer_1"])
    assert [link.relation for link in ask(job, barrier).links] == [
        "counted, with Fanin 2, by",
        "waits together with",
        "counted, with Fanin 2, by",
    ]


def test_the_start_of_a_slice_is_fetched_by_all_trainers():
    job = explained("sync")
    first = next(
        p for p in job.places("pserver_0") if ask(job, p).rule == "initialise-slice" and p.program == "startup"
    )
    fetched = [(m, op.type) for m, op in linked(job, first) if m.startswith("trainer")]
    state = "moment" in next(iter(job.op(first).output_names))
    assert fetched == [] if state else [("trainer_0", "recv"), ("trainer_1", "recv")]
    assert ("pserver_1", job.op(first).type) in [(m, op.type) for m, op in linked(job, first)]


def test_the_distributed_lookup_table():
    job = explained("table by id")
    (prefetch,) = places(job, "prefetch", ["trainer_0"])
    types = [op.type for _, op in linked(job, prefetch)]
    assert types == ["lookup_sparse_table", "lookup_sparse_table", "split_ids", "merge_ids"]
    answer = next(link.place for link in ask(job, prefetch).links)
    assert ("trainer_0", "prefetch") in [(m, op.type) for m, op in linked(job, answer)]
    assert ask(job, answer).rule == "serve-rows"


def test_lookups_in_sparse_tables():
    job = explained("sparse")
    (lookup,) = places(job, "distributed_lookup_table", ["trainer_0"])
    links = ask(job, lookup).links
    assert [link.relation for link in links if job.op(link.place).type == "listen_and_serv"]
    assert any("the gradient of the rows is sent by" in link.relation for link in links)
    (update,) = {link.place for link in links if job.op(link.place).type == "sgd" and link.place.machine == "pserver_0"}
    assert lookup in [link.place for link in ask(job, update).links]
    fake = places(job, "fake_init", ["trainer_0"])[0]
    assert {m for m, _ in linked(job, fake)} == {"pserver_0", "pserver_1"}


def test_collectives_meet():
    job = explained("grad-allreduce")
    for place in places(job, "c_allreduce_sum", ["trainer_0"]):
        assert [(link.relation, link.place) for link in ask(job, place).links] == [
            ("meets", place._replace(machine=f"trainer_{other}")) for other in (1, 2)
        ]


@pytest.mark.parametrize("name", ["geo", "geo, sparse"])
def test_changes_in_mode_geo(name: str):
    job = explained(name)
    (tell,) = [p for p in places(job, "send", ["trainer_0"]) if p.program == "main"]
    added = [link.place for link in ask(job, tell).links]
    assert {ask(job, place).rule for place in added} == {"add-change"}
    for place in added:
        back = [link.place for link in ask(job, place).links]
        assert tell in back
        updates = [there for there in back if job.op(there).input("Param")]
        assert [there.machine for there in updates] == ["trainer_0", "trainer_1"]
        assert place in [link.place for link in ask(job, updates[0]).links]
    (begin,) = [p for p in places(job, "send", ["trainer_0"]) if p.program == "startup"]
    assert {job.op(link.place).type for link in ask(job, begin).links} <= {"recv"}


def test_backups_of_delay_compensation():
    job = explained("dc-asgd")
    reference = places(job, "ref_by_trainer_id", ["pserver_0"])[0]
    answer = ask(job, reference)
    assert "arXiv:1609.08326" in answer.reason
    assert {job.op(link.place).type for link in answer.links} == {"assign"}
    filled = next(link.place for link in answer.links)
    assert reference in [link.place for link in ask(job, filled).links]


def test_attributes_say_what_they_are_about():
    job = explained("sync")
    for kind, name in (("send", "epmap"), ("listen_and_serv", "grad_to_block_id"), ("fetch_barrier", "endpoints")):
        notes = {note.name: note for note in ask(job, places(job, kind)[0]).attributes}
        assert notes[name].meaning
        assert not notes[name].is_default
    text = answer_text(ask(job, places(job, "send", ["trainer_0"])[0]))
    assert "epmap" in text
    assert "merge_add" not in text
    assert "merge_add" in answer_text(ask(job, places(job, "send", ["trainer_0"])[0]), full=True)


def test_ops_of_the_source_say_so():
    job = explained("linear_regression")
    answer = explain_op(job, "trainer_0", "0")
    assert (answer.rule, answer.reason[-27:]) == ("", "so it stays on the trainer.")
    assert answer_json(answer)["source"]["line"] > 0
    assert "every trainer runs it" in explain_op(explained("grad-allreduce"), "trainer_0", "0").reason
    assert "the servers' value may follow" in explain_op(job, "trainer_0", "startup#0").reason


@pytest.mark.parametrize("text", ["0", "#0", "^0#0", "main#0", "@main^0#0", "main^0#0"])
def test_spellings_of_an_op(text: str):
    job = explained("linear_regression")
    assert explain_op(job, "trainer_0", text).place == OpPosition("trainer_0", "main", 0, 0)


@pytest.mark.parametrize(
    ("machine", "text", "message"),
    [
        ("trainer_0", "999", "@main^0 of trainer_0 has no op 999; its ops are 0 to "),
        ("trainer_0", "-1", "'-1' is not the number of an op; write 17, ^2#0 or @startup^0#3"),
        ("trainer_0", "one", "'one' is not the number of an op"),
        ("trainer_0", "start#1", "trainer_0 has no program @start; did you mean startup?"),
        ("trainer_0", "^7#0", "@main of trainer_0 has no block ^7; its blocks are ^0 to ^0"),
        ("trainer_O", "0", "there is no machine 'trainer_O'; did you mean trainer_"),
        ("x", "0", "there is no machine 'x'; the machines are trainer_0, trainer_1, pserver_0, pserver_1"),
    ],
)
def test_what_does_not_exist(machine: str, text: str, message: str):
    with pytest.raises(UnknownNameError) as found:
        explain_op(explained("linear_regression"), machine, text)
    assert message in str(found.value)


def test_a_server_goes_by_its_endpoint():
    assert explain_op(explained("linear_regression"), "a:6174", "0").place.machine == "pserver_0"

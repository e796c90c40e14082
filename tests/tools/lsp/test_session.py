"""What a server answers to an editor that asks out of order, or in a form that the protocol does not have."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pygls", reason="the extra `lsp` is not installed")

ROOT = Path(__file__).parents[3]
INITIALIZE = {"method": "initialize", "params": {"processId": None, "rootUri": None, "capabilities": {}}}
HOVER = {"method": "textDocument/hover", "params": {"textDocument": {"uri": "a:b"}, "position": {"line": 0}}}
HOVER["params"]["position"]["character"] = 0
END: list[dict[str, Any]] = [{"id": 2, "method": "shutdown"}, {"method": "exit"}]
LENGTH = b"Content-Length: %d\r\n\r\n"


def held(*messages: dict[str, Any], length: bytes = LENGTH) -> tuple[int, dict[Any, Any], str]:
    """How a session ends: the status, the answers by the numbers of their requests, and stderr."""
    sent = b""
    for message in messages:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        sent += length % len(body) + body
    command = [sys.executable, "-m", "pstranspile", "lsp"]
    done = subprocess.run(command, input=sent, capture_output=True, timeout=60, cwd=ROOT)
    bodies = [json.loads(body) for body in re.split(rb"Content-Length: .*\r\n(?:.*\r\n)?\r\n", done.stdout) if body]
    answers = {body["id"]: body for body in bodies if "id" in body and "method" not in body}
    return done.returncode, answers, done.stderr.decode()


def code(answer: dict[str, Any]) -> int:
    return answer["error"]["code"]


def test_each_request_has_an_answer_whenever_it_comes():
    status, answers, told = held(
        {"id": 1, **HOVER},
        {"id": 2, **INITIALIZE},
        {"id": "three", **INITIALIZE},
        {"id": 4, **HOVER},
        {"id": 5, "method": "shutdown"},
        {"id": 6, **HOVER},
        {"id": 7, "method": "shutdown"},
        {"method": "exit"},
    )
    assert (status, told) == (0, "")
    assert [*answers] == [1, 2, "three", 4, 5, 6, 7]
    assert (code(answers[1]), answers[1]["error"]["message"]) == (
        -32002,
        "textDocument/hover: the server is not initialized",
    )
    assert "capabilities" in answers[2]["result"]
    assert answers["three"]["error"]["message"] == "initialize: the server is initialized already"
    assert answers[4]["result"] is None
    assert [code(answers[number]) for number in ("three", 6, 7)] == [-32600] * 3


def test_a_request_without_its_parameters_is_refused():
    params: list[Any] = [{}, None, [1], {"textDocument": {"uri": "a:b"}, "position": {"line": -1, "character": 0}}]
    asked = [{"id": number, "method": "textDocument/hover", "params": p} for number, p in enumerate(params)]
    status, answers, told = held({"id": 10, **INITIALIZE}, *asked, {"id": 11, "method": "shutdown"}, {"method": "exit"})
    assert status == 0
    assert [code(answers[number]) for number in range(len(params))] == [-32602] * len(params)
    assert {line.partition(": ")[0] for line in told.splitlines()} == {"pstranspile lsp"}


def test_a_message_of_another_version_is_refused():
    _, answers, _ = held({"id": 1, **INITIALIZE}, {"id": 2, **HOVER, "jsonrpc": "1.0"})
    assert answers[2]["error"]["message"] == "textDocument/hover: a message of JSON-RPC 2.0 is expected"


def test_what_can_be_no_message_is_left_out():
    for wrong in ({"id": {}, "method": "shutdown"}, {"id": 5, "method": 7}):
        status, answers, told = held(
            {"id": 1, **INITIALIZE}, wrong, {"id": 2, "method": "shutdown"}, {"method": "exit"}
        )
        assert (status, [*answers]) == (0, [1, 2])
        assert "is no request, notification or answer: it is left out" in told


@pytest.mark.parametrize("length", [b"content-length: %d\r\n\r\n", b"Content-Length:%d\n\n", LENGTH])
def test_the_length_is_found_however_it_is_written(length: bytes):
    status, answers, _ = held({"id": 1, **INITIALIZE}, *END, length=length)
    assert (status, [*answers]) == (0, [1, 2])


def test_a_cancelled_request_that_has_its_answer_is_no_news():
    cancel = {"method": "$/cancelRequest", "params": {"id": 1}}
    status, answers, told = held({"id": 1, **INITIALIZE}, cancel, *END)
    assert (status, [*answers], told) == (0, [1, 2], "")


def test_a_text_that_is_not_open_can_not_be_changed():
    change = {"textDocument": {"uri": "file:///never.ir", "version": 2}, "contentChanges": [{"text": "x"}]}
    status, _, told = held({"id": 1, **INITIALIZE}, {"method": "textDocument/didChange", "params": change}, *END)
    assert (status, told) == (0, "pstranspile lsp: a text that is not open is changed: file:///never.ir\n")

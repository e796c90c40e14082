"""What machines report of others is told once by who launched them; and a token is of a job alone."""

import os

import pytest

from pstranspile.cluster.net.launch import News, token_of_job


def test_each_event_is_told_once_whoever_reports_it_and_when():
    told: list[str] = []
    news = News(told.append)
    gone, back = ("goes on without trainer_1", "trainer_1"), ("trainer_1 is back", "trainer_1")
    reports = {"pserver_0": [gone, back], "pserver_1": [gone], "trainer_0": [gone]}
    later = {"pserver_1": [back], "trainer_0": [back, gone], "pserver_0": [gone]}
    for role, fields in [(role, each) for part in (reports, later) for role, all_ in part.items() for each in all_]:
        news.take(role, {"news": fields})
    assert told == ["goes on without trainer_1", "trainer_1 is back", "goes on without trainer_1"]


def test_what_a_machine_reports_of_itself_is_told_each_time():
    told: list[str] = []
    news = News(told.append)
    for _ in range(2):
        news.take("pserver_0", {"unsaved": "No space left on device"})
    assert told == ["pserver_0 could not write its part: No space left on device"] * 2


def test_a_job_leaves_no_token_behind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PSTRANSPILE_TOKEN", raising=False)
    with token_of_job():
        assert len(os.environ["PSTRANSPILE_TOKEN"]) == 32
    assert "PSTRANSPILE_TOKEN" not in os.environ
    monkeypatch.setenv("PSTRANSPILE_TOKEN", "given")
    with token_of_job():
        assert os.environ["PSTRANSPILE_TOKEN"] == "given"
    assert os.environ["PSTRANSPILE_TOKEN"] == "given"

"""Machines on other hosts: certificates on both sides, or nobody is let in."""

from __future__ import annotations

import os
import re
import shutil
import ssl
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.machines.simulate import simulate
from pstranspile.cluster.net.loop import CLOSED, Loop
from pstranspile.cluster.net.process import ProcessPlace
from pstranspile.cluster.net.terms import PeerRefused
from pstranspile.cluster.net.tls import Credentials, plain, read_credentials, require_guarded
from pstranspile.cluster.net.transport import Dialer, Listener
from pstranspile.cluster.net.wire import HEADER_SIZE, MAGIC
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.tools.cli import main
from tests.cluster.net.played import compiled, play

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")
FILES = Path(__file__).parents[2] / "data" / "tls"
STEPS = 2


def feeds() -> dict[str, Any]:
    x = np.random.RandomState(0).rand(STEPS, 8, 1000).astype("float32")
    return {"x": x, "y": x[:, :, :20].copy()}


def test_both_sides_show_certificates(tmp_path: Path) -> None:
    job = compiled(tmp_path, PROGRAM, "--pservers", "2", "--trainers", "2")
    found = play(job, feeds(), STEPS, credentials=read_credentials(str(FILES)), fetch=["loss"]).arrays()
    for name, value in simulate(job.roles, feeds(), STEPS, ["loss"], seed=1).arrays().items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("shown", ["nothing", "no certificate", "a stranger's"])
def test_a_trainer_without_the_jobs_certificate_is_not_let_in(
    shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = read_credentials(str(FILES))
    calling = ssl.create_default_context(cafile=str(FILES / "ca.crt"))
    if shown == "nothing":
        usual = ProcessPlace.tls_context_factory

        def openly(place: ProcessPlace, tell: Any, *, listening: bool) -> Any:
            return usual(place, tell, listening=True) if listening else None

        monkeypatch.setattr(ProcessPlace, "tls_context_factory", openly)
    if shown == "a stranger's":
        calling.load_cert_chain(str(FILES / "stranger.crt"), str(FILES / "stranger.key"))
    shows = Credentials(known.listening, calling)
    job = compiled(tmp_path, PROGRAM, "--pservers", "1", "--trainers", "1")
    with pytest.raises(PeerRefused, match=r"nobody answers for 2 seconds: pserver_0 at 127.0.0.1:\d+ \([^()[\]]+\)$"):
        play(job, feeds(), STEPS, credentials=shows, patience=2.0)


def test_a_certificate_for_another_host_is_said_to_be_one(tmp_path: Path) -> None:
    shown = read_credentials(str(FILES))
    job = compiled(tmp_path, PROGRAM, "--pservers", "1", "--trainers", "1")

    def elsewhere(_trainer: str, address: str) -> str:
        return address.replace("127.0.0.1", "0.0.0.0")  # this host, by another name

    with pytest.raises(
        PeerRefused, match=r"0.0.0.0:\d+ \(TLS: its certificate is not accepted: IP address mismatch, .*\)$"
    ):
        play(job, feeds(), STEPS, credentials=shown, patience=1.0, through=elsewhere)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired (_ssl.c:1007)", "certificate has expired"),
        ("[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca (_ssl.c:2576)", "tlsv1 alert unknown ca"),
        ("[Errno 111] no connection", os.strerror(111)),
        ("[Errno -2] Name or service not known", "Name or service not known"),
        ("the other side has ended it", "the other side has ended it"),
    ],
)
def test_why_a_connection_is_over_is_told_plainly(reason: str, told: str) -> None:
    assert plain(reason) == told


def test_a_folder_without_certificates(tmp_path: Path) -> None:
    shutil.copy(FILES / "ca.crt", tmp_path)
    with pytest.raises(DiagnosticError, match=r"tls.crt: error\[start-tls\]: can't be read: No such file"):
        read_credentials(str(tmp_path))


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("127.0.0.1:7", True), ("localhost:7", True), ("[::1]:7", True), ("127.8.8.8:7", True), ("0.0.0.0:7", False),
        ("10.0.0.1:7", False), ("server-0:7", False), ("[::]:7", False),
    ],
)  # fmt: skip
def test_what_is_said_openly_stays_on_this_host(address: str, inside: bool) -> None:
    if inside:
        require_guarded({"pserver_0": address}, ["pserver_0", "trainer_0"])
        return
    with pytest.raises(DiagnosticError, match=r"error\[start-tls\]: pserver_0 is at .*, which is not on this host"):
        require_guarded({"pserver_0": address}, ["pserver_0"])


def test_start_wants_certificates_or_to_be_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled(tmp_path / "job", PROGRAM, "--pservers", "10.0.0.1:6174", "--trainers", "1")
    np.savez(tmp_path / "data.npz", **feeds())
    trainer = ["start", str(tmp_path / "job"), "--role", "trainer_0", "--patience", "0.2"]
    trainer += ["--feed", str(tmp_path / "data.npz")]
    assert main(trainer) == 1
    assert "pserver_0 is at 10.0.0.1:6174, which is not on this host; give --tls DIR, or --insecure" in (
        capsys.readouterr().err
    )
    here = ["--address", "pserver_0=127.0.0.1:9"]
    assert main([*trainer, *here]) == 1
    assert "nobody answers for 0.2 seconds" in capsys.readouterr().err
    assert main([*trainer, *here, "--tls", str(FILES)]) == 1
    assert "nobody answers for 0.2 seconds" in capsys.readouterr().err
    assert main([*trainer, "--tls", str(FILES), "--fluid"]) == 2
    assert "--tls can't be combined with --fluid" in capsys.readouterr().err


def test_keys_and_certificates_that_can_not_be_used_are_told(tmp_path: Path) -> None:
    """Also a key that is encrypted: OpenSSL would ask the terminal for its pass phrase, and wait."""
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True)
    shutil.copy(FILES / "encrypted.key", tmp_path / "tls.key")
    with pytest.raises(DiagnosticError, match=r"tls\.key is encrypted"):
        read_credentials(str(tmp_path))
    shutil.copy(FILES / "tls.key", tmp_path / "tls.key")
    (tmp_path / "tls.crt").write_text("nothing\n")
    with pytest.raises(DiagnosticError, match=r"the certificates can't be used: \S*[^N]"):
        read_credentials(str(tmp_path))


def folder_of(place: Path, **files: str) -> str:
    """A folder with the usual certificates, but for some files: `crt`, `key` and `ca` by the names of others."""
    place.mkdir(parents=True, exist_ok=True)
    for name, usual in {"ca": "ca.crt", "crt": "tls.crt", "key": "tls.key"}.items():
        shutil.copy(FILES / files.get(name, usual), place / usual)
    return str(place)


@pytest.mark.parametrize(
    ("files", "named", "told"),
    [
        ({"crt": "tls.key", "key": "tls.crt"}, "tls.crt", "tls.crt holds no certificate"),
        ({"key": "tls.crt"}, "tls.key", "tls.key holds no key"),
        ({"ca": "tls.key"}, "ca.crt", "ca.crt holds no certificate"),
        ({"key": "stranger.key"}, "tls.key", "tls.key is not the key of tls.crt"),
        ({"crt": "stranger.crt", "key": "stranger.key"}, "tls.crt", "tls.crt is not signed by ca.crt: "),
        ({"crt": "expired.crt", "ca": "expired.crt"}, "tls.crt", "tls.crt, or ca.crt, has expired"),
        ({"crt": "future.crt", "ca": "future.crt"}, "tls.crt", "tls.crt, or ca.crt, is not valid yet"),
        ({"key": "encrypted.key"}, "tls.key", "tls.key is encrypted"),
    ],
)
def test_what_nobody_would_accept_is_told_at_once_with_the_file(
    files: dict[str, str], named: str, told: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "own", **files)
    with pytest.raises(DiagnosticError) as found:
        read_credentials(folder)
    [finding] = found.value.diagnostics
    assert finding.location is not None
    assert (finding.code, finding.location.file) == ("start-tls", str(Path(folder, named)))
    assert told in finding.message


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(name: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "own")
    Path(folder, name).unlink()
    os.mkfifo(Path(folder, name))
    with pytest.raises(DiagnosticError, match=rf"{name}: error\[start-tls\]: is no regular file"):
        read_credentials(folder)


def met(listening: ssl.SSLContext | None, calling: ssl.SSLContext | None) -> tuple[list[str], str]:
    """What the log of who listens says of a caller, and why the caller's connection is over."""
    loop, lines = Loop(), list[str]()
    try:
        shown, expected = (None if one is None else partial(ssl_context, one) for one in (listening, calling))
        listener = Listener("127.0.0.1:0", loop, shown, tell=lines.append)
        frames = Dialer(f"127.0.0.1:{listener.port}", loop, expected).dial()
        assert frames.channel is not None
        frames.channel.send([MAGIC, bytes(HEADER_SIZE - len(MAGIC))])
        while (event := loop.get(5.0)).kind != CLOSED:
            if event.action is not None:
                event.action()
        end = loop.now() + 2.0
        while not lines and loop.now() < end:
            loop._poll(0.05)
        return [re.sub(r":\d+ ", " ", line) for line in lines], plain(event.reason)
    finally:
        loop.close(0.0)


def ssl_context(context: ssl.SSLContext) -> ssl.SSLContext:
    """The context of every connection, where certificates are never replaced."""
    return context


def shows(name: str) -> ssl.SSLContext:
    """A caller that accepts who listens, and shows a certificate of its own."""
    context = ssl.create_default_context(cafile=str(FILES / "ca.crt"))
    if name:
        context.load_cert_chain(
            str(FILES / f"{name}.crt"), str(FILES / f"{'stranger' if name == 'stranger' else 'tls'}.key")
        )
    return context


OWN = "TLS: it does not accept the certificate of this side: "
CLOSED_WITH = "the connection with 127.0.0.1 is closed: "


@pytest.mark.parametrize(
    ("shown", "listener", "caller"),
    [
        (
            "",
            "TLS: it shows no certificate",
            OWN + "certificate required",
        ),
        (
            "stranger",
            "TLS: its certificate is not accepted: self-signed certificate",
            OWN + "unknown ca",
        ),
    ],
)
def test_both_sides_say_whose_certificate_is_not_accepted(shown: str, listener: str, caller: str) -> None:
    lines, reason = met(read_credentials(str(FILES)).listening, shows(shown))
    assert lines == [CLOSED_WITH + listener]
    assert reason == caller


def test_who_listens_with_a_strangers_certificate_is_told_that_it_is_not_accepted() -> None:
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    stranger.load_cert_chain(str(FILES / "stranger.crt"), str(FILES / "stranger.key"))
    lines, reason = met(stranger, read_credentials(str(FILES)).calling)
    assert lines == [CLOSED_WITH + OWN + "unknown ca"]
    assert reason == "TLS: its certificate is not accepted: self-signed certificate"


def test_both_sides_say_that_one_talks_without_tls() -> None:
    known = read_credentials(str(FILES))
    lines, reason = met(known.listening, None)
    assert lines == [CLOSED_WITH + "it talks without TLS, and this side with TLS"]
    assert reason == "it talks with TLS, and this side without TLS"
    lines, reason = met(None, known.calling)
    assert lines == [CLOSED_WITH + "it talks with TLS, and this side without TLS"]
    assert reason == "it has ended the connection before TLS began; it may talk without TLS"

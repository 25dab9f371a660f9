"""The page of `fullrank watch`: what its server answers, and what a browser shows."""

import contextlib
import http.client
import json
import re
import socket
import struct

import pytest

from browser import PATIENCE, chromium
from followed import Written
from fullrank.errors import InputError
from fullrank.files import write_json
from fullrank.report.watch.follow import Follower
from fullrank.report.watch.server import PageServer

HOSTILE = "<img src=x onerror=alert(1)>&amp;'\"`${alert(2)}"


@pytest.fixture
def run(tmp_path):
    run = Written(tmp_path / "run")
    run.row(1, accuracy=0.25, loss=2.0)
    return run


@pytest.fixture
def server(run):
    with PageServer(Follower(run.path)) as server:
        yield server


def port_of(server):
    return int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/", server.url)[1])


def ask(server, path="/", method="GET", host=None):
    """The status, the headers and the content of an answer. The path is sent as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=10)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{port_of(server)}")
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


# The server


def test_the_page_and_the_state_are_served(server):
    status, headers, content = ask(server)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert content.startswith(b"<!doctype html>")
    assert b"http" not in content.replace(b"http://www.w3.org/2000/svg", b"")  # nothing from a network
    status, headers, content = ask(server, "/state")
    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert json.loads(content)["runs"][0]["measures"][0]["newest"] == "25.00 %"
    for _, headers, _ in (ask(server), ask(server, "/state")):
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in headers


def test_head_has_no_content(server):
    status, headers, content = ask(server, "/state", "HEAD")
    assert (status, content) == (200, b"")
    assert int(headers["Content-Length"]) > 100


@pytest.mark.parametrize(
    "path",
    [
        "/metrics.jsonl",
        "/experiment.toml",
        "/../experiment.toml",
        "/%2e%2e/experiment.toml",
        "/state/../experiment.toml",
        "//experiment.toml",
        "/page.js",
        "/state/",
        "/run/metrics.jsonl",
        "/etc/passwd",
        "/.lock",
    ],
)
def test_no_file_is_served(server, path):
    status, _, content = ask(server, path)
    assert (status, content) == (404, b"There is nothing here.\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE"])
def test_no_other_method_is_answered(server, method):
    assert ask(server, "/state", method)[0] == 501


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "0.0.0.0", "[::1]:80"])
def test_another_name_of_this_machine_is_rejected(server, host):
    assert ask(server, "/state", host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "localhost:9999"])
def test_the_own_names_are_accepted_at_any_port(server, host):
    assert ask(server, "/state", host=host)[0] == 200  # the port of a tunnel is another one


def test_a_request_without_a_host_or_with_two_is_rejected(server):
    for lines in ("GET /state HTTP/1.0\r\n\r\n", "GET /state HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port_of(server)), timeout=10) as connection:
            connection.sendall(lines.encode())
            assert connection.recv(100).split()[1] == b"403"


def test_the_server_listens_on_the_loopback_address_only(server):
    with pytest.raises(OSError):  # noqa: PT011
        socket.create_connection(("127.0.0.2", port_of(server)), timeout=2)
    assert server._server.socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "query", ["run=0", "run=99", "run=-1", "run=x", "run=%D9%A3", "run=" + "9" * 40, "other=1", "run="]
)
def test_what_is_no_number_of_a_run_selects_none(server, query):
    status, _, content = ask(server, f"/state?{query}")
    assert (status, len(json.loads(content)["runs"])) == (200, 1)


def test_a_browser_that_goes_away_is_not_reported(server, capsys):
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", port_of(server)), timeout=10) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed by a reset
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert ask(server)[0] == 200
    assert capsys.readouterr() == ("", "")


def test_a_port_in_use_is_said(server, run):
    with pytest.raises(InputError, match=rf"--port {port_of(server)} cannot be used: .*; 0 takes a free one"):
        PageServer(Follower(run.path), port_of(server))


# The browser


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@contextlib.contextmanager
def opened(browser, url, width=1280, scheme="light"):
    """A page, which must complain about nothing until the end of the block."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(PATIENCE)
    page, problems = context.new_page(), []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(dialog.message) or dialog.dismiss())
    try:
        page.goto(url)
        yield page
        assert problems == []
    finally:
        context.close()


def test_a_new_round_appears_without_a_reload(browser, server, run):
    with opened(browser, server.url) as page:
        page.wait_for_selector('#round:text-is("round 1 of 5")')
        page.evaluate("window.marked = true")
        run.row(2, accuracy=0.75, loss=1.0, cautions=["mind the gap"])
        page.wait_for_selector('#round:text-is("round 2 of 5")')
        assert page.evaluate("window.marked")
        assert page.inner_text("#numbers").replace("\xa0", " ").split("\n") == [
            *("accuracy", "75.00 %", "best so far 75.00 %, in round 2"),
            *("loss", "1.0000", "best so far 1.0000, in round 2"),
        ]
        assert page.locator("#charts figure svg").count() == 2
        label = page.get_attribute("#charts svg", "aria-label")
        assert label == "accuracy by round: newest 75.00 % in round 2, best 75.00 % in round 2"
        assert page.inner_text("#warnings li") == "mind the gap"
        run.complete(5)
        page.wait_for_selector('#state:text-is("stopped")')


def test_rows_that_vanish_and_come_again_are_followed(browser, server, run):
    with opened(browser, server.url) as page:
        for rounds in (3, 1, 2):
            run.directory.write_rows([{"round": r, "accuracy": 0.5, "clients": []} for r in range(1, rounds + 1)])
            page.wait_for_selector(f'#round:text-is("round {rounds} of 5")')


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_several_runs_by_keyboard_in_every_width(browser, tmp_path, scheme):
    names = [f"run {number}" for number in range(12)]
    plan = [{"path": name, "name": name, "rounds": 5, "failed": ""} for name in names]
    write_json(tmp_path / "runs.json", {"runs": plan})
    runs = [Written(tmp_path / name) for name in names[:2]]
    for place, run in enumerate(runs):
        run.row(1, accuracy=0.1 + place / 2, loss=2.0)
        run.row(2, accuracy=0.2 + place / 2, loss=2.0)
    with PageServer(Follower(tmp_path)) as server:
        for width in (390, 1280):
            with opened(browser, server.url, width, scheme) as page:
                page.wait_for_selector("#charts svg")
                assert page.locator("#runs tr").count() == 12
                assert page.inner_text("#one-title") == "run 0"
                while page.evaluate("document.activeElement.textContent") != "run 1":
                    page.keyboard.press("Tab")
                page.keyboard.press("Enter")
                page.wait_for_selector('#one-title:text-is("run 1")')
                page.wait_for_selector('#numbers:has-text("70.00")')
                assert page.evaluate("document.activeElement.textContent") == "run 1"  # the focus stays
                wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                assert page.evaluate(wider) == 0
                light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
                assert light == (scheme == "light")


def test_hostile_names_are_shown_and_never_executed(browser, tmp_path):
    folder = tmp_path / HOSTILE
    run = Written(folder / "in" / HOSTILE)
    text = (run.path / "experiment.toml").read_text()
    (run.path / "experiment.toml").write_text(text.replace('"digits"', json.dumps(f"x:{HOSTILE}")))
    run.row(1, accuracy=0.5, cautions=[HOSTILE], skipped={HOSTILE: HOSTILE})
    with PageServer(Follower(folder)) as server, opened(browser, server.url) as page:
        page.wait_for_selector("#charts svg")
        assert page.inner_text("#name") == HOSTILE
        assert page.inner_text("#runs button") == f"in/{HOSTILE}"
        assert HOSTILE in page.inner_text("#title")
        assert page.inner_text("#warnings li >> nth=0") == HOSTILE
        assert page.locator("img").count() == 0


def test_the_page_says_when_the_command_has_ended(browser, run):
    server = PageServer(Follower(run.path))
    context = browser.new_context()
    page = context.new_page()
    with server:
        page.goto(server.url)
        page.wait_for_selector("#charts svg")
    page.wait_for_selector("#notice:not([hidden])", timeout=20_000)
    assert "is lost" in page.inner_text("#notice")
    assert page.inner_text("#round") == "round 1 of 5"
    context.close()

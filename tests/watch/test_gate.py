"""Nobody gets in who may not: names, origins, tokens, paths; with a small fuzz."""

import random
import string
from urllib.parse import quote, urlencode

import pytest
from page_server import append, get, port_of, served
from some_events import a_run

from tardigrad.watch.assets import TYPES

PATHS = ["/", "/static/watch.js", "/events?run=0", "/clients?run=0"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "secret-run"
    append(folder, a_run())
    (folder.parent / "outside.txt").write_text("a secret beside the run")
    (folder / "inside.txt").write_text("a secret in the run")
    return folder


@pytest.fixture(scope="module")
def local(run):
    with served([run]) as address:
        yield address


@pytest.fixture(scope="module")
def public(run):
    """A page that others can reach, by its address with the token."""
    with served([run], host="0.0.0.0", names=["watch.example"]) as address:
        yield address


def test_the_page_of_loopback_needs_no_token(local):
    assert "token" not in local
    assert get(local)[0] == 200
    assert get(local, "/clients?run=0")[0] == 200


@pytest.mark.parametrize("path", ["/", "/clients?run=0", "/static/watch.js"])
@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "127.0.0.1:1",
             "10.0.0.1:{port}", "localhost.:{port}", "", "127.0.0.1:{port}@evil.example", "[::2]:{port}",
             "127.0.0.1"],
)  # fmt: skip
def test_a_foreign_name_for_this_machine_is_refused(local, path, name):
    """A name server may let any name point to 127.0.0.1; the browser then takes its page for ours."""
    assert get(local, path, raw_host=name.format(port=port_of(local)))[0] in (400, 421)


@pytest.mark.parametrize("name", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_names_of_loopback_are_known(local, name):
    assert get(local, raw_host=name.format(port=port_of(local)))[0] == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost.evil.example:{port}", "file://"],
)
def test_requests_of_other_pages_are_refused(local, path, origin):
    assert get(local, path, {"Origin": origin.format(port=port_of(local))})[0] == 403


@pytest.mark.parametrize("path", PATHS[1:])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_a_browser_says_comes_from_elsewhere_is_refused(local, path, site):
    assert get(local, path, {"Sec-Fetch-Site": site})[0] == 403


def test_the_own_page_may_read(local):
    own = f"http://127.0.0.1:{port_of(local)}"
    assert get(local, "/clients?run=0", {"Origin": own, "Sec-Fetch-Site": "same-origin"})[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "FROB"])
def test_the_page_can_only_be_read(local, method):
    assert get(local, "/", method=method)[0] in (400, 405)


@pytest.mark.parametrize("path", [*PATHS[:2], "/clients?run=0", "/nothing"])
def test_every_answer_has_the_headers(local, path):
    headers = get(local, path)[1]
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers
    assert "Server" not in headers


def test_the_page_has_nothing_inline(local):
    text = get(local)[2].decode()
    assert "style=" not in text
    assert "<style" not in text
    assert " on" not in text.replace(" on clients", "").replace(" once", "").replace(" on disk", "")
    assert text.count("<script") == text.count("<script src=")
    assert "http" not in text


# -- on another address ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", [*PATHS, "/?token=", "/?token=x", "/static/watch.js?token={token}", "/?Token={token}"]
)
def test_a_page_that_others_can_reach_needs_its_token(public, path):
    token = public.partition("?token=")[2]
    assert len(token) >= 43
    status, headers, body = get(public, path.format(token=token), raw_host=f"10.1.2.3:{port_of(public)}")
    assert status == 401
    assert "Set-Cookie" not in headers
    assert b"secret-run" not in body


def test_the_token_gives_a_cookie_that_scripts_and_other_sites_do_not_get(public):
    token = public.partition("?token=")[2]
    status, headers, _ = get(public, f"/?token={token}")
    assert status == 303
    assert headers["Location"] == "/"
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert token not in cookie
    pair = cookie.partition(";")[0]
    assert get(public, "/clients?run=0", {"Cookie": pair})[0] == 200
    assert get(public, "/", {"Cookie": pair, "Origin": "https://evil.example"})[0] == 403
    for wrong in (pair[:-1], pair + "x", pair.lower(), pair.partition("=")[0] + "=" + token, "x=" + pair):
        assert get(public, "/clients?run=0", {"Cookie": wrong})[0] == 401


def test_even_with_the_cookie_a_foreign_name_is_refused(public):
    token = public.partition("?token=")[2]
    pair = get(public, f"/?token={token}")[1]["Set-Cookie"].partition(";")[0]
    assert get(public, "/", {"Cookie": pair}, raw_host="evil.example")[0] == 421
    assert get(public, "/", {"Cookie": pair}, raw_host="watch.example")[0] == 200


def test_a_token_can_be_asked_for_on_loopback(run):
    with served([run], token=True) as address:
        assert get(address, "/clients?run=0")[0] == 401
        assert get(address, "/" + address.rpartition("/")[2])[0] == 303


def test_each_page_has_a_token_of_its_own(run, public):
    with served([run], host="0.0.0.0") as other:
        assert other.partition("?token=")[2] != public.partition("?token=")[2]


# -- paths and fuzz --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/outside.txt", "/static/../outside.txt", "/static/..%2f..%2foutside.txt", "/static/%2e%2e/inside.txt",
     "/static//etc/passwd", "/static/%2fetc%2fpasswd", "//etc/passwd", "/inside.txt", "/static/inside.txt",
     "/events?run=../outside", "/events?run=-1", "/events?run=1", "/events?run=%00", "/clients?run=1e0",
     "/clients?run=99999999999999999999", "/static/uPlot.min.css%00.js", "/static/", "/static"],
)  # fmt: skip
def test_nothing_but_the_files_of_the_page_can_be_fetched(local, path):
    status, _, body = get(local, path)
    assert status == 404
    assert b"a secret" not in body
    assert b"root:" not in body


def test_random_requests_get_nothing_and_break_nothing(local, public):
    draws = random.Random(20)
    words = ["..", "%2e%2e", "static", "events", "clients", "inside.txt", "%00", "run", "token", "0", "-1",
             "1e9", "%ff", "%c0%af", *TYPES, *string.punctuation]  # fmt: skip
    names = ["Cookie", "Origin", "Referer", "Sec-Fetch-Site", "Range", "X-Forwarded-For", "X-Forwarded-Host",
             "Upgrade"]  # fmt: skip
    allowed = set(PATHS) | {f"/static/{name}" for name in TYPES}
    for _ in range(400):
        path = "/" + "".join(draws.choice(words) for _ in range(draws.randrange(1, 6)))
        headers = {
            draws.choice(names): "".join(draws.choices(string.printable[:94], k=draws.randrange(1, 30)))
        }
        if path.split("?")[0] in ("/events",):
            continue
        status, _, body = get(public, path, headers)
        assert status in (400, 401, 403, 404, 405)
        assert b"client-" not in body
        status, _, body = get(local, path, headers)
        assert status < 500
        assert b"a secret" not in body
        if status == 200:
            assert path.split("?")[0] in {one.split("?")[0] for one in allowed}
    assert get(local)[0] == 200
    assert get(public)[0] == 401


def test_any_query_and_cookie_gets_an_answer_without_an_error(local, public):
    draws = random.Random(21)
    texts = ["", "0", "-1", "1e9", "9" * 400, "\u0661", "\x00", "\U0001f600", "<script>", "../..", "x" * 3000]
    names = ["run", "search", "sort", "down", "page", "token", "x"]
    for _ in range(300):
        pairs = [(draws.choice(names), draws.choice(texts)) for _ in range(draws.randrange(5))]
        status, _, body = get(local, f"/clients?{urlencode(pairs)}")
        assert status in (200, 404), pairs
        assert b"a secret" not in body
        cookie = "; ".join(f"{quote(a)}={quote(b)}" for a, b in pairs) + draws.choice(["", ";;=", '="'])
        assert get(public, "/clients?run=0", {"Cookie": cookie})[0] in (400, 401)

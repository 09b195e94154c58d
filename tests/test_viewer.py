"""The page of view: what it is told, who may ask, that its file holds the same, and that nothing in it becomes code."""

import base64
import gzip
import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from understudy.config import TrainConfig
from understudy.errors import ConfigError
from understudy.messages import Message
from understudy.run import Run, read_metrics
from understudy.trajectory import Trajectory
from understudy.viewer import curves, site
from understudy.viewer.answers import ANSWERS, as_json
from understudy.viewer.export import answers, export
from understudy.viewer.library import Library
from viewing import episodes, make_run, served, take_step

HOSTILE = "</script><img src=x onerror=alert(1)><!-- \u2028 ${x}"


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNDERSTUDY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "one", finished=True)
    make_run(folder / "two", seed=1)
    return folder


@pytest.fixture(scope="module")
def library(folder: Path) -> Library:
    return Library([folder])


@pytest.fixture(scope="module")
def page(library: Library) -> Iterator[httpx2.Client]:
    with served(library) as address, httpx2.Client(verify=False, timeout=60, base_url=address) as client:
        yield client


def ask(library: Library, pattern: str, **values: str) -> Any:
    return json.loads(as_json(ANSWERS[pattern](library, values)))


# ---- what there is ----


def test_a_library_reads_what_there_is_now(folder: Path, tmp_path: Path) -> None:
    assert list(Library([folder]).runs()) == ["one", "two"]
    evaluation = folder / "one" / "evaluations" / "000000 base model.json"
    mixed = Library([folder / "two", evaluation])
    assert (list(mixed.runs()), list(mixed.evaluations())) == (["two"], ["000000 base model"])
    library = Library([folder, tmp_path / ".." / folder.name])
    assert list(library.runs()) == ["one", "two"], "the same folder twice is there once"
    with pytest.raises(ConfigError, match="there is no run 'three'; there are: one, two"):
        library.run("three")
    make_run(tmp_path / "more" / "one", steps=0)
    both = Library([folder, tmp_path / "more"])
    assert list(both.runs()) == ["one", "two", "more one"]
    make_run(tmp_path / "more" / "new", steps=0)
    assert "new" in both.runs()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere is not a run \(it is not there\)"):
        Library([tmp_path / "nowhere"])
    with pytest.raises(ConfigError, match="is not a run"):
        Library([tmp_path])


def test_overview(library: Library) -> None:
    one, two = ask(library, "/api/overview")["runs"]
    assert (one["key"], one["step"], one["steps"], one["finished"]) == ("one", 3, 3, True)
    assert (two["key"], two["step"], two["steps"], two["finished"]) == ("two", 3, 6, False)
    assert one["success_rate"] == 0.5


def test_a_stamp_changes_when_the_run_does(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    library = Library([run.folder])

    def stamp() -> Any:
        return ask(library, "/api/overview")["runs"][0]["stamp"]

    before = stamp()
    assert stamp() == before
    take_step(run, 2)
    assert stamp() != before
    assert ask(library, "/api/runs/{run}/curves", run="run")["steps"] == [1, 2]


def test_the_metrics_of_many_runs_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Run.create(tmp_path / "run 0", TrainConfig())
    first.log(1, {"reward/success_rate": 0.25})
    for number in range(1, 40):
        shutil.copytree(first.folder, tmp_path / f"run {number}")
    read = list[Path]()
    monkeypatch.setattr(curves, "read_metrics", lambda folder: read.append(folder) or read_metrics(folder))
    library = Library([tmp_path])
    assert [run["success_rate"] for run in ask(library, "/api/overview")["runs"]] == [0.25] * 40
    first.log(2, {"reward/success_rate": 0.5})
    assert sum(run["success_rate"] for run in ask(library, "/api/overview")["runs"]) == 10.25
    assert len(read) == 41


def test_evaluations_have_a_stamp_of_their_own(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    alone = tmp_path / "alone.json"
    shutil.copy(run.folder / "evaluations" / "000000 base model.json", alone)
    library = Library([tmp_path])

    def stamps() -> tuple[Any, Any]:
        told = ask(library, "/api/overview")
        return told["runs"][0]["evaluated"], told["evaluations"][0]["evaluated"]

    before = stamps()
    take_step(run, 2)
    assert stamps() == before
    run.write("evaluations/000002 trained.json", alone.read_text())
    assert stamps()[0] != before[0]
    assert len(ask(library, "/api/evaluations/{key}", key="run")["rows"]) == 2
    alone.write_text(alone.read_text() + "\n")
    assert stamps()[1] != before[1]


def test_curves_are_the_metrics(library: Library, folder: Path) -> None:
    told = ask(library, "/api/runs/{run}/curves", run="two")
    lines = read_metrics(folder / "two")
    assert told["steps"] == [1, 2, 3]
    assert told["each"] == 1
    assert told["series"]["train/entropy"] == [line["train/entropy"] for line in lines]
    assert "lost" not in told["series"], "what is never a number is no curve"


def test_long_runs_are_told_in_means(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=0)
    for step in range(1, 4102):
        run.log(step, {"loss/total": float(step)} if step % 2 else {})
    told = ask(Library([run.folder]), "/api/runs/{run}/curves", run="run")
    assert told["each"] == 3
    assert (told["steps"][0], told["steps"][-1], len(told["steps"])) == (3, 4101, 1367)
    assert told["series"]["loss/total"][:2] == [2.0, 5.0]


def test_a_run_says_its_config_health_and_result(library: Library) -> None:
    told = ask(library, "/api/runs/{run}", run="one")
    assert told["config"]["steps"] == 3
    assert told["defaults"]["sft.steps"] > 0 == told["config"]["sft.steps"]
    (finding,) = told["health"]
    assert (finding["check"], finding["steps"]) == ("entropy", [2])
    assert [row["name"] for row in told["result"]["rows"]] == ["do nothing", "gold oracle", "trained"]
    (evaluation,) = told["evaluations"]
    assert evaluation["name"] == "base model"
    assert evaluation["success"]["mean"] == 0.0
    assert evaluation["success"]["high"] > 0.2


def test_damaged_files_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    (run.folder / "config.toml").write_text("steps = 'many'\n")
    (run.folder / "result.json").write_text("{")
    (run.folder / "evaluations" / "000001 warm start.json").write_text("{}")
    with (run.folder / "metrics.jsonl").open("a") as f:
        f.write('{"step": 2, "los')
    library = Library([run.folder])
    (head,) = ask(library, "/api/overview")["runs"]
    assert "steps" in head["problems"][0]
    told = ask(library, "/api/runs/{run}", run="run")
    assert (told["result"], told["config"]) == (None, {})
    assert "000001 warm start.json is not an evaluation" in told["evaluations"][1]["problem"]
    assert ask(library, "/api/runs/{run}/curves", run="run")["steps"] == [1]


def test_episodes_are_told_in_pages(library: Library) -> None:
    told = ask(library, "/api/runs/{run}/episodes", run="one", outcome="success", limit="2")
    while told["done"] < told["of"]:
        told = ask(library, "/api/runs/{run}/episodes", run="one", outcome="success", limit="2")
    assert (told["total"], len(told["rows"]), told["damaged"]) == (12, 2, [])
    facets = ask(library, "/api/runs/{run}/facets", run="one")
    assert (facets["total"], facets["successes"], facets["steps"]) == (27, 12, [1, 3])
    assert dict(facets["fields"]["fault"]) == {"user": 3}


def test_half_a_surrogate_pair_and_no_number_are_told() -> None:
    assert json.loads(as_json({"text": "\ud83d", "lost": float("nan")})) == {"text": "\ud83d", "lost": None}


# ---- who may ask ----


def test_the_page_over_http(page: httpx2.Client) -> None:
    shown = page.get("/")
    assert shown.status_code == 200
    assert page.get("/api/overview").json()["runs"][0]["key"] == "one"
    assert page.get("/api/runs/two/curves").json()["steps"] == [1, 2, 3]
    assert page.get("/api/runs/none").status_code == 404
    assert "there is no run 'none'" in page.get("/api/runs/none").json()["error"]
    assert "sorted by 'x'" in page.get("/api/runs/one/episodes?sort=x").json()["error"]
    for name in site.static():
        assert page.get(f"/static/{name}").content == site.static()[name]


@pytest.mark.parametrize(
    "path", ["/static/index.html", "/static/../cli.py", "/static/%2e%2e/cli.py", "/static//etc/passwd"]
)
def test_only_the_page_s_own_files_are_served(page: httpx2.Client, path: str) -> None:
    assert page.get(path).status_code == 404


def test_another_name_for_this_machine_is_refused(page: httpx2.Client) -> None:
    assert page.get("/api/overview", headers={"Host": "evil.example"}).status_code == 400
    assert page.get("/", headers={"Host": f"evil.example:{page.base_url.port}"}).status_code == 400
    assert page.get("/", headers={"Host": f"localhost:{page.base_url.port}"}).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_origin_gets_nothing_and_sets_nothing_off(page: httpx2.Client, site: str) -> None:
    """Some answers load a model or start a server: an image in any page could ask for them."""
    headers = {"Sec-Fetch-Site": site}
    assert page.get("/", headers=headers).status_code == 200  # a link may lead here
    for path in ("/api/overview", "/static/page.js", "/no/such"):
        refused = page.get(path, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "wrong_origin")
    for own in ("same-origin", "none"):
        assert page.get("/api/overview", headers={"Sec-Fetch-Site": own}).status_code == 200


def test_nothing_can_be_changed(page: httpx2.Client) -> None:
    for path in ("/api/overview", "/api/runs/one", "/"):
        assert {page.request(way, path).status_code for way in ("POST", "PUT", "DELETE")} == {405}


# ---- nothing becomes code ----


def scripts(text: str) -> list[str]:
    """What stands in the scripts of a page that are code, or say where it is."""
    return re.findall(r'<script type="(?:module|importmap)">(.*?)</script>', text, re.DOTALL)


def allowed(policy: str, name: str) -> list[str]:
    return dict(part.strip().split(" ", 1) for part in policy.split(";"))[name].split()


def test_the_policy_lets_in_what_is_there_and_no_more(page: httpx2.Client) -> None:
    shown = page.get("/")
    policy = shown.headers["Content-Security-Policy"]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts(shown.text)]
    assert allowed(policy, "script-src") == ["'self'", *[f"'sha256-{digest}'" for digest in digests]]
    assert allowed(policy, "default-src") == ["'none'"]
    assert allowed(policy, "require-trusted-types-for") == ["'script'"]
    assert "unsafe" not in policy
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg", "", shown.text), "nothing comes from elsewhere"


def test_our_modules_make_no_markup_of_text() -> None:
    for name, content in site.static().items():
        text = content.decode()
        if name.startswith("vendor/") or not name.endswith(".js"):
            continue
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )
        assert not re.search(r'from "[./]', text), f"{name} imports by address"
        for imported in re.findall(r'from "view/([^"]+)"', text):
            assert imported in site.static(), f"{name} imports {imported}"


def test_what_is_vendored_is_what_npm_has() -> None:
    folder = Path(site.__file__).parent / "static" / "vendor"
    rows = re.findall(r"^(\S+\.(?:mjs|js|css)) .* ([0-9a-f]{64})$", (folder / "NOTICE").read_text(), re.MULTILINE)
    there = {path.name for path in folder.iterdir() if path.suffix in (".mjs", ".js", ".css")}
    assert {name for name, _ in rows} == there
    for name, digest in rows:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


# ---- the file ----


def told_by(file: Path) -> dict[str, Any]:
    (block,) = re.findall(r'id="told">([^<]*)<', file.read_text())
    return dict(json.loads(gzip.decompress(base64.b64decode(block))))


def test_the_file_holds_what_the_server_says(library: Library, page: httpx2.Client, tmp_path: Path) -> None:
    assert export(library, tmp_path / "page.html") == []
    told = told_by(tmp_path / "page.html")
    for where in ("/api/overview", "/api/runs/one", "/api/runs/two/curves"):
        assert told["answers"][where] == page.get(where).json()
    assert told["rows"]["two"] == page.get("/api/runs/two/episodes?limit=500").json()["rows"]


def test_the_file_s_policy(library: Library, tmp_path: Path) -> None:
    export(library, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts(text)]
    assert allowed(policy, "script-src") == ["data:", *[f"'sha256-{digest}'" for digest in digests]]
    assert "connect-src" not in policy, "nothing is asked of anybody"
    modules = json.loads(scripts(text)[0])["imports"]
    assert base64.b64decode(modules["view/app.js"].partition(",")[2]) == site.static()["app.js"]
    assert modules.keys() >= {"preact", "preact/hooks", "htm", "uplot", "view/pages/runs.js"}


def test_a_file_says_what_it_leaves_out(library: Library, tmp_path: Path) -> None:
    left_out = export(library, tmp_path / "page.html", most=10)
    assert left_out == [f"{key}: of 27 episodes this file holds 5, the newest" for key in ("one", "two")]
    told = told_by(tmp_path / "page.html")
    assert told["left_out"] == left_out
    assert {row["step"] for row in told["rows"]["one"]} == {3}


def test_what_a_model_wrote_stays_in_its_block(tmp_path: Path) -> None:
    run = make_run(tmp_path / HOSTILE.replace("/", "_")[:20], steps=0)
    hostile = Trajectory(HOSTILE, HOSTILE, HOSTILE, messages=[Message(role="assistant", content=HOSTILE)])
    run.keep(1, [hostile, *episodes(count=1)])
    export(Library([run.folder]), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "onerror" not in text
    assert len(re.findall("<script", text)) == len(re.findall("</script", text)) == 3


def test_a_file_that_cannot_be_written(library: Library, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"page\.html cannot be written: No such file"):
        export(library, tmp_path / "none" / "page.html")


def test_answers_are_all_but_the_episodes(library: Library) -> None:
    found = answers(library)
    assert found.keys() >= {"/api/overview", "/api/runs/one", "/api/runs/two/curves"}
    assert not any("/episodes" in where or "/facets" in where for where in found)


# ---- the verb ----


def test_every_option_is_told() -> None:
    page = (Path(__file__).parents[1] / "docs" / "viewer.md").read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "understudy", "view", "--help"], capture_output=True, text=True, check=True
    )
    options = set(re.findall(r"(--[a-z-]+)", done.stdout)) - {"--help"}
    assert options == set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page))


def test_json_and_file_by_the_verb(folder: Path, tmp_path: Path) -> None:
    verb = [sys.executable, "-m", "understudy", "view", str(folder / "one")]
    told = json.loads(subprocess.run([*verb, "--json"], capture_output=True, text=True, check=True).stdout)
    assert told["/api/runs/one/curves"]["steps"] == [1, 2, 3]
    file = tmp_path / "one.html"
    done = subprocess.run([*verb, "--export", str(file)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{file} opens in any browser\n", "")
    assert len(told_by(file)["rows"]["one"]) == 27


def test_ctrl_c_ends_it_cleanly(folder: Path) -> None:
    command = [sys.executable, "-m", "understudy", "view", str(folder / "one"), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr
        first = process.stderr.readline()
        address = first.split()[0]
        assert httpx2.get(f"{address}api/overview", verify=False, timeout=60).json()["runs"][0]["key"] == "one"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")

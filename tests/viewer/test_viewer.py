"""Test the viewer's API, access control, exported file, and protection against script injection."""

import base64
import hashlib
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from support.eval_results import make_result
from support.groups import make_groups
from support.paths import ROOT
from support.run_evaluations import write_run_evaluation
from support.viewer_episodes import read_page_data, request_route
from support.viewing import cache_without_indexes, make_run, play_episodes, serve_viewer, write_step
from understudy.core.errors import ConfigError
from understudy.core.messages import Message
from understudy.core.trajectory import Trajectory
from understudy.runs.config import TrainConfig
from understudy.runs.run import Run, read_metrics
from understudy.runs.storage import annotations
from understudy.runs.storage.annotations import Annotation, write_annotation
from understudy.runs.storage.episode_store import REPORT_FILE
from understudy.runs.storage.locking import folder_lock
from understudy.runs.storage.status import RunStatus, StatusRecorder
from understudy.viewer import query, run_api, site
from understudy.viewer.api import encode_json
from understudy.viewer.export import collect_answers, export_page
from understudy.viewer.library import RunLibrary
from understudy.viewer.progress import run_progress
from understudy.viewer.run_text import format_run

HOSTILE = "</script><img src=x onerror=alert(1)><!-- \u2028 ${x}"


@pytest.fixture(autouse=True, scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNDERSTUDY_CACHE", cache_without_indexes(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "one", finished=True)
    make_run(folder / "two", seed=1)
    return folder


@pytest.fixture(scope="module")
def library(folder: Path) -> RunLibrary:
    return RunLibrary([folder])


@pytest.fixture(scope="module")
def viewer_client(library: RunLibrary) -> Iterator[httpx2.Client]:
    with serve_viewer(library) as address, httpx2.Client(verify=False, timeout=60, base_url=address) as client:
        yield client


def test_library_finds_runs_and_evaluations_and_names_duplicates(folder: Path, tmp_path: Path) -> None:
    assert list(RunLibrary([folder]).runs()) == ["one", "two"]
    evaluation = folder / "one" / "evaluations" / "000000 base"
    mixed = RunLibrary([folder / "two", evaluation])
    assert (list(mixed.runs()), list(mixed.evaluations())) == (["two"], ["000000 base"])
    library = RunLibrary([folder, tmp_path / ".." / folder.name])
    assert list(library.runs()) == ["one", "two"], "the same folder twice is there once"
    with pytest.raises(ConfigError, match=r"'three'.*one, two"):
        library.run("three")
    make_run(tmp_path / "more" / "one", steps=0)
    both = RunLibrary([folder, tmp_path / "more"])
    assert list(both.runs()) == ["one", "two", "more one"]
    make_run(tmp_path / "more" / "new", steps=0)
    assert "new" in both.runs()


def test_evaluations_of_models_with_dots_keep_their_names(tmp_path: Path) -> None:
    for name in ("retail-gpt-4.1-mini-001", "retail-gpt-4.1-nano-001"):
        (tmp_path / name).mkdir()
        (tmp_path / name / REPORT_FILE).write_text("{}", encoding="utf-8")
    (tmp_path / "gpt-4.1.json").write_text("{}", encoding="utf-8")
    names = {"retail-gpt-4.1-mini-001", "retail-gpt-4.1-nano-001", "gpt-4.1"}
    assert RunLibrary([tmp_path]).evaluations().keys() == names


def test_folder_without_runs_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        RunLibrary([tmp_path / "nowhere"])
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path))):
        RunLibrary([tmp_path])


def test_overview_lists_runs_with_their_progress(library: RunLibrary) -> None:
    one, two = request_route(library, "/api/overview")["runs"]
    assert (one["key"], one["step"], one["steps"], one["state"]) == ("one", 3, 3, "finished")
    assert (two["key"], two["step"], two["steps"], two["state"]) == ("two", 3, 6, "crashed")
    assert one["success_rate"] == 0.5


def test_overview_says_how_a_run_ended_and_what_it_does(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    library = RunLibrary([run.folder])

    def head() -> Any:
        return request_route(library, "/api/overview")["runs"][0]

    with folder_lock(run.folder), StatusRecorder(run.folder, 2) as status:
        assert head()["progress"]["activity"] == "start"
        status.report("sample", 3, 8, {})
        while head()["progress"]["done"] != 3:
            time.sleep(0.02)
        found = head()
        assert found["state"] == "running"
        shown = found["progress"]
        assert (shown["phase"], shown["step"], shown["activity"], shown["total"]) == ("RL", 3, "sample", 8)
        assert "RL step 3 of 4, sample 3 of 8" in format_run(run.folder)
    assert (head()["state"], head()["progress"]) == ("finished", None)
    with pytest.raises(KeyboardInterrupt), StatusRecorder(run.folder, 2):
        raise KeyboardInterrupt("stopped after step 2")
    assert (head()["state"], head()["reason"]) == ("stopped", "stopped after step 2")
    assert re.search(r"^state +stopped after step 2$", format_run(run.folder), re.MULTILINE)
    with pytest.raises(ValueError, match="wrong"), StatusRecorder(run.folder, 2):
        raise ValueError("wrong")
    assert (head()["state"], head()["reason"]) == ("crashed", "ValueError: wrong")
    assert re.search(r"^state +crashed: ValueError: wrong$", format_run(run.folder), re.MULTILINE)


def test_time_left_comes_from_the_last_steps_of_the_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(sft={"steps": 2}, steps=10)
    seconds = {"time/step_seconds": 10.0, "time/rollout_seconds": 8.0}
    steps = [{"step": 1, "time/step_seconds": 500.0}, *({"step": step, **seconds} for step in (3, 4, 5))]
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)

    def progress(activity: str, done: int, total: int, elapsed: float) -> Any:
        state = RunStatus(state="running", step=5, activity=activity, done=done, total=total)
        return run_progress(config, state.replace(activity_started_at=now - elapsed), steps)

    sampling = progress("sample", 1, 8, 3)
    assert (sampling.phase, sampling.step, sampling.done, sampling.total) == ("RL", 6, 1, 8)
    assert sampling.step_seconds_left == pytest.approx(5 + 2, abs=0.5)
    assert sampling.phase_seconds_left == pytest.approx(5 + 2 + 6 * 10, abs=0.5)
    assert progress("sample", 4, 8, 12).step_seconds_left == pytest.approx(12 + 2, abs=0.5), "slower than usual"
    assert progress("update", 0, 1, 0.5).step_seconds_left == pytest.approx(1.5, abs=0.5)
    assert progress("evaluate step 5", 5, 20, 4).step_seconds_left == pytest.approx(12, abs=0.5)
    assert progress("evaluate step 5", 5, 20, 4).step == 5
    assert progress("evaluate step 5", 0, 20, 4).step_seconds_left is None
    first = run_progress(config, RunStatus(state="running", step=2, activity="update", total=1), steps[:1])
    assert (first.phase, first.step_seconds_left) == ("RL", None), "SFT steps say nothing about RL steps"


def test_points_of_a_curve_do_not_mix_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(tmp_path / "run", TrainConfig(sft={"steps": 3}, steps=6))
    for step in range(1, 10):
        run.log_metrics(step, {"train/loss": 100.0 if step <= 3 else 1.0})
    monkeypatch.setattr(run_api, "MAX_POINTS", 5)
    answer = request_route(RunLibrary([run.folder]), "/api/runs/{run}/curves", run="run")
    assert answer["phases"] == [["SFT", 1, 3], ["RL", 4, 9]]
    assert answer["steps"] == [2, 3, 5, 7, 9]
    assert answer["series"]["train/loss"] == [100.0, 100.0, 1.0, 1.0, 1.0]
    text = format_run(run.folder)
    assert re.search(r"^train/loss SFT .* 100 -> 100 *$", text, re.MULTILINE)
    assert re.search(r"^train/loss RL .* 1 -> 1 *$", text, re.MULTILINE)


def test_run_stamp_changes_with_a_new_step(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    library = RunLibrary([run.folder])

    def stamp() -> Any:
        return request_route(library, "/api/overview")["runs"][0]["stamp"]

    before = stamp()
    assert stamp() == before
    write_step(run, 2)
    assert stamp() != before
    assert request_route(library, "/api/runs/{run}/curves", run="run")["steps"] == [1, 2]


def test_metrics_are_read_again_only_for_changed_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Run.create(tmp_path / "run 0", TrainConfig())
    first.log_metrics(1, {"rollout/success_rate": 0.25})
    for number in range(1, 40):
        shutil.copytree(first.folder, tmp_path / f"run {number}")
    read = list[Path]()
    monkeypatch.setattr(run_api, "read_metrics", lambda folder: read.append(folder) or read_metrics(folder))
    library = RunLibrary([tmp_path])
    assert [run["success_rate"] for run in request_route(library, "/api/overview")["runs"]] == [0.25] * 40
    first.log_metrics(2, {"rollout/success_rate": 0.5})
    assert sum(run["success_rate"] for run in request_route(library, "/api/overview")["runs"]) == 10.25
    assert len(read) == 41


def test_evaluations_stamp_changes_only_with_evaluations(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    alone = tmp_path / "alone.json"
    shutil.copy(run.folder / "evaluations" / "000000 base" / "report.json", alone)
    library = RunLibrary([tmp_path])

    def stamps() -> tuple[Any, Any]:
        found = request_route(library, "/api/overview")
        return found["runs"][0]["evaluations_stamp"], found["evaluations"][0]["evaluations_stamp"]

    before = stamps()
    write_step(run, 2)
    assert stamps() == before
    write_run_evaluation(run, 2, "rl")
    assert stamps()[0] != before[0]
    assert len(request_route(library, "/api/evaluations/{key}", key="run")["rows"]) == 2
    alone.write_text(alone.read_text() + "\n")
    assert stamps()[1] != before[1]


def test_other_eval_sets_do_not_change_the_verdict(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    for step, stage, held_out, other in ((1, "sft", 0.0, 1.0), (2, "rl", 1.0, 0.0)):
        write_run_evaluation(run, step, stage, make_result(*[(held_out,)] * 8))
        write_run_evaluation(run, step, stage, make_result(*[(other,)] * 9), eval_set="ood")
    found = request_route(RunLibrary([tmp_path]), "/api/evaluations/{key}", key="run")
    assert [row["success"]["mean"] for row in found["rows"][-4:]] == [0.0, 1.0, 1.0, 0.0]
    assert (found["tasks"], found["hardest"]) == (8, [])
    assert "more often" in found["verdict"]


def test_curves_equal_the_logged_metrics(library: RunLibrary, folder: Path) -> None:
    answer = request_route(library, "/api/runs/{run}/curves", run="two")
    lines = read_metrics(folder / "two")
    assert answer["steps"] == [1, 2, 3]
    assert answer["steps_per_point"] == 1
    assert answer["series"]["train/entropy"] == [line["train/entropy"] for line in lines]
    assert "lost" not in answer["series"], "what is never a number is no curve"


def test_curve_points_of_long_runs_are_means(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=0)
    for step in range(1, 4102):
        run.log_metrics(step, {"train/loss": float(step)} if step % 2 else {})
    answer = request_route(RunLibrary([run.folder]), "/api/runs/{run}/curves", run="run")
    assert answer["steps_per_point"] == 3
    assert (answer["steps"][0], answer["steps"][-1], len(answer["steps"])) == (3, 4101, 1367)
    assert answer["series"]["train/loss"][:2] == [2.0, 5.0]


def test_evaluations_say_model_user_split_tasks_and_time(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    report = run.folder / "evaluations" / "000000 base" / "report.json"
    alone = tmp_path / "alone.json"
    shutil.copy(report, alone)
    found = {each["key"]: each["about"] for each in request_route(RunLibrary([run.folder, alone]), "/api/evaluations")}
    assert (found["run"]["model"], found["run"]["user"]) == (run.config.model, run.config.user.kind)
    assert (found["alone"]["model"], found["alone"]["user"]) == ("", "")
    assert found["alone"]["written"] == alone.stat().st_mtime_ns / 1e9
    assert found["run"]["written"] == report.stat().st_mtime_ns / 1e9
    assert found["run"]["tasks"] == found["alone"]["tasks"]


def test_run_answer_has_config_health_result_and_evaluations(library: RunLibrary) -> None:
    answer = request_route(library, "/api/runs/{run}", run="one")
    assert answer["config"]["steps"] == 3
    assert answer["defaults"]["sft.steps"] > 0 == answer["config"]["sft.steps"]
    (finding,) = answer["health"]
    assert (finding["check"], finding["steps"]) == ("entropy", [2])
    assert [row["name"] for row in answer["result"]["rows"]] == ["noop", "gold", "rl"]
    (evaluation,) = answer["evaluations"]
    assert evaluation["name"] == "base"
    assert evaluation["success"]["mean"] == 0.0
    assert evaluation["success"]["high"] > 0.2


def test_damaged_files_of_a_run_are_reported(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    (run.folder / "config.toml").write_text("steps = 'many'\n")
    (run.folder / "result.json").write_text("{")
    (write_run_evaluation(run, 1, "sft") / "report.json").write_text("{}")
    with (run.folder / "metrics.jsonl").open("a") as f:
        f.write('{"step": 2, "los')
    library = RunLibrary([run.folder])
    (head,) = request_route(library, "/api/overview")["runs"]
    assert "steps" in head["problems"][0]
    answer = request_route(library, "/api/runs/{run}", run="run")
    assert (answer["result"], answer["config"]) == (None, {})
    assert "000001 sft" in answer["evaluations"][1]["problem"]
    assert request_route(library, "/api/runs/{run}/curves", run="run")["steps"] == [1]


def test_episodes_are_paged_and_counted_by_facet(library: RunLibrary) -> None:
    answer = request_route(library, "/api/runs/{run}/episodes", run="one", outcome="success", limit="2")
    while answer["done_bytes"] < answer["total_bytes"]:
        answer = request_route(library, "/api/runs/{run}/episodes", run="one", outcome="success", limit="2")
    assert (answer["total"], len(answer["rows"]), answer["damaged"]) == (12, 2, [])
    facets = request_route(library, "/api/runs/{run}/facets", run="one")
    assert (facets["total"], facets["successes"], facets["steps"]) == (27, 12, [1, 3])
    assert dict(facets["fields"]["fault"]) == {"user": 3}


def test_encode_json_handles_lone_surrogates_and_nan() -> None:
    assert json.loads(encode_json({"text": "\ud83d", "lost": float("nan")})) == {"text": "\ud83d", "lost": None}


def test_http_server_answers_page_api_and_static_files(viewer_client: httpx2.Client) -> None:
    shown = viewer_client.get("/")
    assert shown.status_code == 200
    assert viewer_client.get("/api/overview").json()["runs"][0]["key"] == "one"
    assert viewer_client.get("/api/runs/two/curves").json()["steps"] == [1, 2, 3]
    assert viewer_client.get("/api/runs/none").status_code == 404
    assert "'none'" in viewer_client.get("/api/runs/none").json()["error"]
    assert "'x'" in viewer_client.get("/api/runs/one/episodes?sort=x").json()["error"]
    for name in site.static_files():
        assert viewer_client.get(f"/static/{name}").content == site.static_files()[name]


@pytest.mark.parametrize(
    "path", ["/static/index.html", "/static/../cli.py", "/static/%2e%2e/cli.py", "/static//etc/passwd"]
)
def test_paths_outside_static_files_are_not_found(viewer_client: httpx2.Client, path: str) -> None:
    assert viewer_client.get(path).status_code == 404


def test_foreign_host_header_is_rejected(viewer_client: httpx2.Client) -> None:
    assert viewer_client.get("/api/overview", headers={"Host": "evil.example"}).status_code == 400
    assert viewer_client.get("/", headers={"Host": f"evil.example:{viewer_client.base_url.port}"}).status_code == 400
    assert viewer_client.get("/", headers={"Host": f"localhost:{viewer_client.base_url.port}"}).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_cross_origin_request_is_rejected(viewer_client: httpx2.Client, site: str) -> None:
    """Some answers load a model or start a server, and an image in any page could request them."""
    headers = {"Sec-Fetch-Site": site}
    assert viewer_client.get("/", headers=headers).status_code == 200  # a link from another page may open the viewer
    for path in ("/api/overview", "/static/page.js", "/no/such"):
        refused = viewer_client.get(path, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "wrong_origin")
    for own in ("same-origin", "none"):
        assert viewer_client.get("/api/overview", headers={"Sec-Fetch-Site": own}).status_code == 200


@pytest.mark.slow
def test_wild_parameters_are_answered_with_400_or_404(viewer_client: httpx2.Client) -> None:
    draw = random.Random(0)
    values = [
        "",
        "-1",
        "9" * 5000,
        "nan",
        "a\x00b",
        "\ud83d".encode("utf-8", "surrogatepass"),
        "," * 3000,
        '"',
        "%",
        "1e999",
    ]
    names = [
        *query.FILTER_COLUMNS,
        *query.MULTI_VALUE_COLUMNS,
        "text",
        "task",
        "sort",
        "offset",
        "limit",
        "tag",
        "noted",
    ]
    names += ["min_step", "max_step", "min_reward", "max_reward", "unknown"]
    for _ in range(150):
        given = {name: draw.choice(values) for name in draw.sample(names, 3)}
        for path in ("/api/runs/one/episodes", "/api/runs/one/facets"):
            answer = viewer_client.get(f"{path}?{urllib.parse.urlencode(given)}")
            assert answer.status_code in (200, 400), (given, answer.text)
    assert viewer_client.get("/api/runs/one/episodes?min_step=two").status_code == 400
    odd = ["9" * 5000, "-1", "%00", "%ff", "000000%20base", "eval"]
    for one in odd:
        for path in (f"/api/episode/one/{one}/1", f"/api/episode/one/1/{one}", f"/api/failures/one/{one}"):
            assert viewer_client.get(path).status_code in (200, 400, 404), path
        path = f"/api/comparison/one/{one}/one/{one}"
        assert viewer_client.get(path).status_code in (400, 404), path


def test_notes_are_stored_and_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    library = RunLibrary([run.folder])
    with serve_viewer(library) as address, httpx2.Client(verify=False, timeout=60, base_url=address) as client:
        before = client.get("/api/overview").json()["runs"][0]
        assert before["annotation"] == {"note": "", "tags": []}
        given = {"note": "the best\none \u202e", "tags": ["best", " keep ", "best"]}
        stored = {"note": given["note"], "tags": ["best", "keep"]}
        assert client.post("/api/annotations/run", json=given).json() == stored
        after = client.get("/api/overview").json()["runs"][0]
        assert after["annotation"] == stored
        assert after["stamp"] != before["stamp"]
        assert after["written"] == before["written"]
        assert client.post("/api/annotations/run/1/2", json={"tags": ["odd"]}).status_code == 200
        assert client.get("/api/episode/run/1/2").json()["annotation"] == {"note": "", "tags": ["odd"]}
        assert [row["number"] for row in client.get("/api/runs/run/episodes?tag=odd").json()["rows"]] == [2]
        assert client.post("/api/annotations/run", json={}).json() == {"note": "", "tags": []}
    write_annotation(run.folder, Annotation(item="run", note="late\x1b[2J", tags=("odd",)))
    assert re.search(r"^tags +odd$", format_run(run.folder), re.MULTILINE)
    assert "\x1b" not in format_run(run.folder)


def test_notes_of_another_origin_or_of_wrong_form_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", steps=1)
    with (
        serve_viewer(RunLibrary([run.folder])) as address,
        httpx2.Client(verify=False, timeout=60, base_url=address) as client,
    ):

        def status(content: bytes = b"{}", path: str = "/api/annotations/run", **headers: str) -> int:
            named = {"Content-Type": "application/json"} | {
                key.replace("_", "-"): each for key, each in headers.items()
            }
            return client.post(path, content=content, headers=named).status_code

        assert status(Origin="http://evil.example") == 403
        assert status(Origin="null") == 403
        assert status(Sec_Fetch_Site="cross-site") == 403
        assert status(Sec_Fetch_Site="same-site") == 403
        assert status(Host="evil.example") == 400
        assert status(Content_Type="text/plain") == 415
        assert status(Content_Type="application/x-www-form-urlencoded") == 415
        assert status(b" " * (1 << 20)) == 413
        for wrong in (
            b"",
            b"[]",
            b'{"item": "x"}',
            b'{"note": 1}',
            b'{"tags": ["a,b"]}',
            b"\xff",
            b'{"note": "\\ud800"}',
        ):
            assert status(wrong) == 400, wrong
        assert status(json.dumps({"note": "x" * 10_001}).encode()) == 400
        for missing in ("none", "run/1/99", "run/7/1", "run/%2e%2e/1"):
            assert status(path=f"/api/annotations/{missing}") == 404, missing
        assert client.get("/api/annotations/run").status_code == 405
        assert not (run.folder / "notes.jsonl").exists()
        assert status(Origin=address, Sec_Fetch_Site="same-origin") == 200
        monkeypatch.setattr(annotations, "append_bytes", full_disk)
        assert status() == 404
        assert "notes.jsonl" in client.post("/api/annotations/run", json={}).json()["error"]


def full_disk(file: Path, data: bytes) -> None:
    raise OSError(28, "No space left on device")


def test_write_methods_are_not_allowed(viewer_client: httpx2.Client) -> None:
    for path in ("/api/overview", "/api/runs/one", "/"):
        assert {viewer_client.request(way, path).status_code for way in ("POST", "PUT", "DELETE")} == {405}


def script_contents(text: str) -> list[str]:
    """Return the contents of a page's modules and import maps."""
    return re.findall(r'<script type="(?:module|importmap)">(.*?)</script>', text, re.DOTALL)


def policy_sources(policy: str, name: str) -> list[str]:
    return dict(part.strip().split(" ", 1) for part in policy.split(";"))[name].split()


def test_content_security_policy_allows_only_the_pages_scripts(viewer_client: httpx2.Client) -> None:
    shown = viewer_client.get("/")
    policy = shown.headers["Content-Security-Policy"]
    digests = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in script_contents(shown.text)
    ]
    assert policy_sources(policy, "script-src") == ["'self'", *[f"'sha256-{digest}'" for digest in digests]]
    assert policy_sources(policy, "default-src") == ["'none'"]
    assert policy_sources(policy, "require-trusted-types-for") == ["'script'"]
    assert "unsafe" not in policy
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg", "", shown.text), "nothing comes from elsewhere"


def test_own_modules_never_parse_text_as_html() -> None:
    for name, content in site.static_files().items():
        text = content.decode()
        if name.startswith("vendor/") or not name.endswith(".js"):
            continue
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )
        assert not re.search(r'from "[./]', text), f"{name} imports by address"
        for imported in re.findall(r'from "view/([^"]+)"', text):
            assert imported in site.static_files(), f"{name} imports {imported}"


def test_vendored_files_match_the_hashes_in_notice() -> None:
    folder = Path(site.__file__).parent / "static" / "vendor"
    rows = re.findall(r"^(\S+\.(?:mjs|js|css)) .* ([0-9a-f]{64})$", (folder / "NOTICE").read_text(), re.MULTILINE)
    there = {path.name for path in folder.iterdir() if path.suffix in (".mjs", ".js", ".css")}
    assert {name for name, _ in rows} == there
    for name, digest in rows:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


@pytest.mark.slow
def test_exported_file_contains_the_servers_answers(
    library: RunLibrary, viewer_client: httpx2.Client, tmp_path: Path
) -> None:
    assert export_page(library, tmp_path / "page.html") == []
    answer = read_page_data(tmp_path / "page.html")
    for where in ("/api/overview", "/api/runs/one", "/api/runs/two/curves"):
        assert answer["answers"][where] == viewer_client.get(where).json()
    assert answer["rows"]["two"] == viewer_client.get("/api/runs/two/episodes?limit=500").json()["rows"]


@pytest.mark.slow
def test_exported_file_has_a_strict_content_security_policy(library: RunLibrary, tmp_path: Path) -> None:
    export_page(library, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in script_contents(text)]
    assert policy_sources(policy, "script-src") == ["data:", *[f"'sha256-{digest}'" for digest in digests]]
    assert "connect-src" not in policy, "nothing is asked of anybody"
    modules = json.loads(script_contents(text)[0])["imports"]
    assert base64.b64decode(modules["view/app.js"].partition(",")[2]) == site.static_files()["app.js"]
    assert modules.keys() >= {"preact", "preact/hooks", "htm", "uplot", "view/pages/runs.js"}


@pytest.mark.slow
def test_exported_file_lists_omitted_episodes(library: RunLibrary, tmp_path: Path) -> None:
    left_out = export_page(library, tmp_path / "page.html", max_episodes=4)
    assert [re.findall(r"^\w+|\d+", line) for line in left_out] == [["one", "27", "2"], ["two", "27", "2"]]
    answer = read_page_data(tmp_path / "page.html")
    assert answer["left_out"] == left_out
    assert {row["step"] for row in answer["rows"]["one"]} == {3}


def test_hostile_text_stays_inside_the_files_data_block(tmp_path: Path) -> None:
    run = make_run(tmp_path / HOSTILE.replace("/", "_")[:20], steps=0)
    hostile = Trajectory(HOSTILE, HOSTILE, HOSTILE, messages=[Message(role="assistant", content=HOSTILE)])
    run.save_groups(1, make_groups([hostile, *play_episodes(count=1)]))
    export_page(RunLibrary([run.folder]), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "onerror" not in text
    assert len(re.findall("<script", text)) == len(re.findall("</script", text)) == 3


def test_export_to_a_missing_folder_raises_config_error(library: RunLibrary, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"page\.html\b.*No such file"):
        export_page(library, tmp_path / "none" / "page.html")


def test_collected_answers_exclude_episodes_and_facets(library: RunLibrary) -> None:
    found = collect_answers(library)
    assert found.keys() >= {"/api/overview", "/api/runs/one", "/api/runs/two/curves"}
    assert not any("/episodes" in where or "/facets" in where for where in found)


def test_every_view_option_is_documented() -> None:
    documentation = (ROOT / "docs" / "viewer.md").read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "understudy", "view", "--help"], capture_output=True, text=True, check=True
    )
    options = set(re.findall(r"(--[a-z-]+)", done.stdout)) - {"--help"}
    assert options <= set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", documentation))


@pytest.mark.slow
def test_view_command_prints_json_and_exports_a_file(folder: Path, tmp_path: Path) -> None:
    verb = [sys.executable, "-m", "understudy", "view", str(folder / "one")]
    answer = json.loads(subprocess.run([*verb, "--json"], capture_output=True, text=True, check=True).stdout)
    assert answer["/api/runs/one/curves"]["steps"] == [1, 2, 3]
    file = tmp_path / "one.html"
    done = subprocess.run([*verb, "--export", str(file)], capture_output=True, text=True, check=True)
    assert (str(file) in done.stdout, done.stderr) == (True, "")
    assert len(read_page_data(file)["rows"]["one"]) == 27


def test_ctrl_c_stops_the_server_cleanly(folder: Path) -> None:
    command = [sys.executable, "-m", "understudy", "view", str(folder / "one"), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr
        first = process.stderr.readline()
        address = first.split()[0]
        assert httpx2.get(f"{address}api/overview", verify=False, timeout=60).json()["runs"][0]["key"] == "one"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")

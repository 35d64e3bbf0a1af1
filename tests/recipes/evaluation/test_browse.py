"""The page of samples in a real headless Chromium, driven through chromedriver."""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from recipes.evaluation import browse
from recipes.evaluation.main import main as evaluate

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no chromium and chromedriver here (Debian packages chromium, chromium-driver)"
)


class Browser:
    """As much of the WebDriver protocol as these tests need."""

    def __init__(self, address):
        self._address = address
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,800"]
        options = {"goog:chromeOptions": {"binary": BROWSER, "args": arguments}}
        self._session = self._send("POST", "/session", {"capabilities": {"alwaysMatch": options}})["sessionId"]

    def _send(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._address + path, data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def _do(self, method, path, body=None):
        return self._send(method, f"/session/{self._session}{path}", body)

    def open(self, url):
        self._do("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        return self._do("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def _find(self, selector):
        (found,) = self._do("POST", "/element", {"using": "css selector", "value": selector}).values()
        return found

    def click(self, selector):
        self._do("POST", f"/element/{self._find(selector)}/click", {})

    def type(self, selector, text):
        self._do("POST", f"/element/{self._find(selector)}/value", {"text": text})

    def text(self, selector):
        return self._do("GET", f"/element/{self._find(selector)}/text")

    def close(self):
        self._send("DELETE", f"/session/{self._session}")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("driver") / "log"
    with log.open("w") as stream:
        driver = subprocess.Popen([DRIVER, f"--port={port}"], stdout=stream, stderr=stream)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(address + "/status", timeout=5)
                break
            except (urllib.error.URLError, OSError):
                assert driver.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
        found = Browser(address)
        yield found
        found.close()
    finally:
        driver.kill()
        driver.wait()


def graded(model, benchmark, problem, sample, right, **more):
    return {
        "problem": problem,
        "sample": sample,
        "question": f"What is {problem}?",
        "gold": "1",
        "response": f"{model} says {problem}",
        "status": "score",
        "right": right,
        "reason": "" if right else "wrong",
        "answer": "1",
        "tokens": 10 * (sample + 1),
        "finish_reason": "length" if sample else "stop",
    } | more


def write_page(folder, outputs, steps=None):
    for (model, benchmark), rows in outputs.items():
        path = folder / model / f"{benchmark}.samples.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(map(json.dumps, rows)))
    page = folder / "page.html"
    arguments = [str(folder), "--output", str(page)]
    if steps:
        (folder / "steps.jsonl").write_text("\n".join(map(json.dumps, steps)))
        arguments += ["--steps", str(folder / "steps.jsonl")]
    assert browse.main(arguments) == 0
    return page.as_uri()


# Model a has both problems of "sums" right, b only the first; on "logic" both are wrong.
OUTPUTS = {
    ("a", "sums"): [graded("a", "sums", str(p), s, True) for p in range(2) for s in range(2)],
    ("b", "sums"): [graded("b", "sums", str(p), s, p == 0) for p in range(2) for s in range(2)],
    ("a", "logic"): [graded("a", "logic", "0", 0, False)],
    ("b", "logic"): [graded("b", "logic", "0", 0, False, status="skip")],
}


@needs_browser
def test_filters_by_benchmark_model_verdict_length_and_text(browser, tmp_path):
    url = write_page(tmp_path, OUTPUTS)
    browser.open(url)
    assert browser.text("#count") == "10 of 10 samples, 6 right"
    browser.click("#benchmark option[value=logic]")
    assert browser.text("#count") == "2 of 10 samples, 0 right"
    browser.click("#verdict option:nth-child(4)")
    assert browser.text("#count") == "1 of 10 samples, 0 right"
    browser.click("#benchmark option[value='']")
    browser.click("#verdict option[value='']")
    browser.click("#model option[value=b]")
    browser.type("#shortest", "15")
    assert browser.text("#count") == "2 of 10 samples, 1 right"
    browser.open("about:blank")
    browser.open(url + "#truncated=true&text=b+says+1")
    assert browser.text("#count") == "1 of 10 samples, 0 right", "filters stand in the address"


@needs_browser
def test_shows_where_two_models_disagree(browser, tmp_path):
    browser.open("about:blank")
    browser.open(write_page(tmp_path, OUTPUTS))
    browser.click("#disagree option[value='0,1']")
    assert browser.text("#count") == "4 of 10 samples, 2 right"
    browser.click("#disagree option[value='0>1']")
    assert browser.text("#count") == "4 of 10 samples, 2 right"
    browser.click("#disagree option[value='1>0']")
    assert browser.text("#count") == "0 of 10 samples, 0 right"


@needs_browser
def test_colours_the_authors_and_shows_the_steps(browser, tmp_path):
    text = "💡one</script><b>two three"
    outputs = {("a", "sums"): [graded("a", "sums", "0", 0, True, response=text, own_spans=[[0, 4], [20, 25]])]}
    steps = [{"problem": "0", "sample": 0, "steps": [0.9, 0.1]}]
    browser.open(write_page(tmp_path, outputs, steps))
    assert browser.text(".response") == text
    spans = browser.run(
        "return [...document.querySelectorAll('.response span')].map(s => [s.className, s.textContent])"
    )
    assert spans == [["own", text[:4]], ["partner", text[4:20]], ["own", text[20:25]]]
    colours = browser.run("return [...document.querySelectorAll('.step')].map(s => s.style.background + ' ' + s.title)")
    assert len(colours) == 2 and colours[0] != colours[1]
    assert colours[1].endswith("step 2: 0.100")


@needs_browser
def test_opens_ten_thousand_samples_in_three_seconds(browser, tmp_path):
    response = "We add the numbers and see. " * 40
    rows = [
        graded("a", "sums", str(p), s, p % 3 == 0, response=response + str(p)) for p in range(1250) for s in range(8)
    ]
    url = write_page(tmp_path, {("a", "sums"): rows})
    seconds = []
    for _ in range(3):
        browser.open("about:blank")
        browser.open(url)
        seconds.append(browser.run("return performance.getEntriesByType('navigation')[0].loadEventEnd / 1000"))
    assert browser.text("#count").startswith("10000 of 10000 samples")
    assert browser.run("return document.querySelectorAll('.row').length") < 100
    browser.run("document.getElementById('list').scrollTop = 26 * 9000; return 0")
    deadline = time.monotonic() + 10
    while "sums 1125 #0" not in browser.text("#list"):
        assert time.monotonic() < deadline
    assert min(seconds) < 3, seconds


def test_a_page_of_a_real_evaluation(tmp_path):
    (tmp_path / "sums.jsonl").write_text(json.dumps({"problem": "What is 1+1?", "answer": "2"}))
    row = {"problem": "0", "sample": 0, "response": r"\boxed{2}", "tokens": 4, "finish_reason": "stop"}
    (tmp_path / "saved.jsonl").write_text(json.dumps(row))
    arguments = [f"benchmarks=[{tmp_path / 'sums.jsonl'}]", f"score_only={tmp_path / 'saved.jsonl'}"]
    assert evaluate([*arguments, f"output_dir={tmp_path / 'out'}"]) == 0
    data = browse.page_data(browse.read_outputs([tmp_path / "out"]))
    assert data["problems"] == [{"text": "What is 1+1?", "gold": "2"}]
    assert data["samples"][0]["verdict"] == "right"


def test_what_cannot_be_shown_is_refused(tmp_path, capsys):
    assert browse.main([str(tmp_path)]) == 2
    assert "expected the output_dir of an evaluation" in capsys.readouterr().err
    write_page(tmp_path, OUTPUTS)
    assert browse.main([str(tmp_path), str(tmp_path)]) == 2
    assert "is in two of the folders" in capsys.readouterr().err
    (tmp_path / "steps.jsonl").write_text(json.dumps({"problem": "0", "sample": 0, "steps": [0.5]}))
    assert browse.main([str(tmp_path), "--steps", str(tmp_path / "steps.jsonl")]) == 2
    assert "add the keys model and benchmark" in capsys.readouterr().err
    (tmp_path / "steps.jsonl").write_text(json.dumps({"model": "m", "benchmark": "b", "problem": "0", "sample": 0}))
    assert browse.main([str(tmp_path), "--steps", str(tmp_path / "steps.jsonl")]) == 2
    assert "lacks a key" in capsys.readouterr().err
    assert browse.main([str(tmp_path), "--output", str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err

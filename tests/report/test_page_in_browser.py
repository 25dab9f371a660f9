"""The page of a report in Chromium: as a reader sees it, moves in it, and takes data from it."""

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import pytest

import fullrank
from browser import chromium, opened
from fullrank.report.page.blocks import csv_of, figures_in
from fullrank.report.page.build import page_of
from fullrank.report.page.html import asset, html_of
from recorded_runs import HEALTHY, member, rows, subject

HOSTILE = '</script><img src=x onerror="alert(1)">'
SIZES = {"light": (1280, "light"), "dark": (1280, "dark"), "phone": (390, "light")}


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The report of two methods and two seeds on two sites, whose every name contains markup."""
    folder = tmp_path_factory.mktemp("pages")
    digits = fullrank.data.load_dataset("digits")
    names = [f"{HOSTILE}{k}" for k in range(10)]
    arrays = {"x_train": digits.train.x[:300], "y_train": digits.train.y[:300]}
    arrays |= {"x_test": digits.test.x[:120], "y_test": digits.test.y[:120]}
    sites = {part: np.array([f"<b>site {k % 2}</b>" for k in range(n)]) for part, n in (("train", 300), ("test", 120))}
    np.savez(
        folder / "data.npz",
        **{name: np.asarray(value) for name, value in arrays.items()},
        **{f"domain_{part}": own for part, own in sites.items()},
        classes=np.array(names),
    )
    few = {
        "data.name": str(folder / "data.npz"),
        "data.partition": "domain",
        "data.holdout": 0.2,
        "model.name": "mlp",
        "train.rounds": 4,
        "train.epochs": 1,
        "probe.every": 2,
        "probe.embed": 50,
        "evaluate.metrics": ["accuracy", "calibration"],
    }
    runs = folder / "<i onclick=alert(2)>runs & co"
    for method in ("fedavg", "fedprox"):
        for seed in (0, 1):
            fullrank.run({**few, "method.name": method, "seed": seed}, runs / f"{method}-{seed}")
    before = {file: file.read_bytes() for file in sorted(runs.rglob("*")) if file.is_file()}
    page = fullrank.write_report(runs, json_file=folder / "page.json", csv_folder=folder / "tables")
    after = {file: file.read_bytes() for file in sorted(runs.rglob("*")) if file.is_file() and file != page}
    assert after == before
    return page, json.loads((folder / "page.json").read_text()), folder / "tables"


def figures(page):
    return [block for block in figures_in(page) if block["type"] == "figure"]


DRAWN = """Object.fromEntries([...document.querySelectorAll("[data-chart]")].filter((e) => e.offsetParent).map((e) => {
    const svg = e.querySelector(".chart > svg");
    return [e.dataset.chart, [svg.getAttribute("aria-label"),
        svg.querySelectorAll("path, rect, circle, line").length, svg.textContent]]; }))"""
"""The charts that are on the page without opening a row of a table: their label, their marks and their text."""
OVERLAPPING = """[...document.querySelectorAll("[data-chart]")].filter((e) => {
    const boxes = [...e.querySelectorAll(".chart text")].filter((t) => t.textContent && !t.classList.length)
        .map((t) => t.getBoundingClientRect()).filter((r) => r.width);
    return boxes.some((a, k) => boxes.slice(k + 1).some((b) =>
        a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3));
}).map((e) => e.dataset.chart)"""
"""The charts in which two labels overlap."""


@pytest.mark.parametrize("kind", SIZES)
def test_every_chart_is_drawn_and_nothing_goes_wrong(browser, written, kind):
    file, page, _ = written
    width, scheme = SIZES[kind]
    with opened(browser, file, width, scheme) as it:
        places = it.page.evaluate("[...document.querySelectorAll('[data-chart]')].map((e) => e.dataset.chart)")
        assert sorted(places) == sorted(block["id"] for block in figures(page))
        drawn = it.page.evaluate(DRAWN)
        assert len(drawn) > 25
        for id, (label, marks, text) in drawn.items():
            assert len(label) > 20, id
            assert marks > 3, id
            assert "no defined values" not in text, id
        assert it.page.evaluate("document.documentElement.scrollWidth") <= width
        assert it.problems == []
        assert all(url.startswith(("file:", "data:")) for url in it.requests)


def test_text_in_charts_does_not_overlap(browser, written):
    file, *_ = written
    for width in (1280, 390):
        with opened(browser, file, width) as it:
            assert it.page.evaluate(OVERLAPPING) == [], width


def test_names_with_markup_are_shown_as_they_are(browser, written):
    file, *_ = written
    with opened(browser, file) as it:
        body = it.page.locator("body")
        assert HOSTILE[:20] in body.inner_text()
        assert "<b>site 0</b>" in body.inner_text()
        assert "<i onclick=alert(2)>runs & co" in body.inner_text()
        assert it.page.locator("main img, main b, main i, main [onclick], main [onerror]").count() == 0
        assert it.page.locator("script").count() == 2
        title = it.page.locator("#figure-confusion svg title").first
        assert title.text_content().startswith(HOSTILE)
        assert it.problems == []


def test_the_policy_of_the_page_forbids_other_scripts_and_connections(browser, written):
    file, *_ = written
    with opened(browser, file) as it:
        it.page.evaluate(
            """() => { const s = document.createElement("script"); s.textContent = "window.hacked = 1";
            document.body.append(s); }"""
        )
        assert it.page.evaluate("window.hacked") is None
        assert it.page.evaluate("fetch('https://example.org').then(() => 'sent', () => 'blocked')") == "blocked"


def test_a_slider_moves_through_rounds_by_keyboard(browser, written):
    file, *_ = written
    with opened(browser, file) as it:
        figure = it.page.locator("#figure-spectra")
        slider = figure.get_by_role("slider")
        assert "round" in slider.get_attribute("aria-label")
        assert slider.get_attribute("aria-valuetext") == "round 4"
        before = figure.locator(".chart path.line").first.get_attribute("d")
        slider.focus()
        it.page.keyboard.press("ArrowLeft")
        assert slider.get_attribute("aria-valuetext") == "round 2"
        assert figure.locator(".shown").inner_text() == "round 2"
        assert figure.locator(".chart path.line").first.get_attribute("d") != before


def test_a_list_chooses_the_method_of_a_chart(browser, written):
    file, page, _ = written
    (chart,) = (block["chart"] for block in figures(page) if block["id"] == "confusion")
    with opened(browser, file) as it:
        figure = it.page.locator("#figure-confusion")
        before = figure.locator(".chart > svg").inner_html()
        choose = figure.get_by_role("combobox")
        assert choose.locator("option").all_inner_texts() == ["fedavg", "fedprox"]
        choose.select_option(label="fedprox")
        assert (figure.locator(".chart > svg").inner_html() == before) == (
            chart["frames"][0]["values"] == chart["frames"][1]["values"]
        )


def test_a_table_sorts_by_number_and_by_text(browser, written):
    file, *_ = written
    with opened(browser, file) as it:
        table = it.page.locator("#table-runs")
        head = table.locator("th", has_text="last five")
        button = head.get_by_role("button")

        def column():
            return [float(text) for text in table.locator("tbody tr:first-child td:nth-child(4)").all_inner_texts()]

        button.focus()
        it.page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "descending"
        assert column() == sorted(column(), reverse=True)
        it.page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "ascending"
        assert column() == sorted(column())
        table.locator("th", has_text="method").get_by_role("button").click()
        names = table.locator("tbody tr:first-child td:nth-child(1)").all_inner_texts()
        assert names == sorted(names)
        assert head.get_attribute("aria-sort") is None


def test_the_curves_behind_a_row_are_shown_on_demand(browser, written):
    file, *_ = written
    with opened(browser, file) as it:
        button = it.page.locator("#table-methods").get_by_role("button", name="Curves of fedprox")
        assert button.get_attribute("aria-expanded") == "false"
        button.focus()
        it.page.keyboard.press("Enter")
        assert button.get_attribute("aria-expanded") == "true"
        names = it.page.locator("#table-methods .detail:visible .legend").inner_text()
        assert names.split("\n") == ["seed 0", "seed 1"]
        assert it.page.locator("#table-methods .detail:visible path.line").count() >= 2


def test_values_are_read_by_keyboard_and_by_pointer(browser, written):
    file, page, _ = written
    (chart,) = (block["chart"] for block in figures(page) if block["id"] == "accuracy")
    with opened(browser, file) as it:
        body = it.page.locator("#figure-accuracy .chart")
        body.focus()
        it.page.keyboard.press("ArrowRight")
        it.page.keyboard.press("ArrowRight")
        tip = it.page.get_by_role("status")
        assert tip.inner_text().startswith("Round 2\nfedavg (2 seeds): ")
        assert f"{chart['series'][0]['y'][1]:.1f} %" in tip.inner_text()
        it.page.keyboard.press("Escape")
        assert tip.is_hidden()
        body.hover(position={"x": 600, "y": 100})
        assert tip.inner_text().startswith("Round ")


def test_a_legend_hides_a_line(browser, written):
    file, *_ = written
    with opened(browser, file) as it:
        figure = it.page.locator("#figure-accuracy")
        assert figure.locator("path.line[d]").count() - figure.locator(".legend path.line").count() == 2
        button = figure.get_by_role("button", name="fedavg")
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        assert figure.locator(".chart path.line").count() == 1


def test_downloads_are_the_files_that_the_command_writes(browser, written):
    file, page, tables = written
    with opened(browser, file) as it:
        made = it.page.evaluate(
            """() => { const charts = JSON.parse(document.getElementById("charts").textContent);
            return Object.fromEntries(Object.entries(charts).map(([id, chart]) =>
                [id, fullrank.csv(fullrank.rowsOf(chart))])); }"""
        )
        for block in figures(page):
            assert made[block["id"]] == csv_of(block), block["id"]
            assert made[block["id"]] == (tables / f"{block['id']}.csv").read_text(), block["id"]
        names = ["=1+1", "@a,b", "+1", "-1.5e-3", "-x", "a=1", '="']
        columns = [{"name": name, "kind": "text"} for name in names]
        table = {"type": "table", "columns": columns, "rows": [[{"value": name} for name in names]]}
        assert it.page.evaluate("rows => fullrank.csv(rows)", [names, names]) == csv_of(table)
        with it.page.expect_download() as wanted:
            it.page.locator("#figure-loss").get_by_role("button", name="CSV").click()
        assert wanted.value.suggested_filename == "loss.csv"
        assert wanted.value.path().read_text() == (tables / "loss.csv").read_text()


def test_a_chart_is_shown_as_a_table(browser, written):
    file, page, _ = written
    (chart,) = (block["chart"] for block in figures(page) if block["id"] == "loss")
    with opened(browser, file) as it:
        figure = it.page.locator("#figure-loss")
        figure.get_by_role("button", name=re.compile("as a table")).click()
        rows = figure.locator("table tbody tr")
        assert rows.count() == sum(len(each["x"]) for each in chart["series"])


def test_the_colours_can_be_chosen(browser, written):
    file, *_ = written
    with opened(browser, file, scheme="dark") as it:
        ground = "getComputedStyle(document.body).backgroundColor"
        dark = it.page.evaluate(ground)
        it.page.get_by_label("Colours").select_option("light")
        assert it.page.evaluate(ground) != dark
        assert it.page.evaluate("document.documentElement.dataset.theme") == "light"


def test_everything_that_acts_has_a_name_and_can_be_reached(browser, written):
    file, *_ = written
    nameless = """[...document.querySelectorAll("button, select, input, a, [role=img], [tabindex]")].filter((e) => {
        const label = e.closest("label");
        return !(e.getAttribute("aria-label") || e.textContent.trim() || (label && label.textContent.trim()));
    }).filter((e) => e.tagName !== "PRE").map((e) => e.outerHTML.slice(0, 80))"""
    with opened(browser, file) as it:
        assert it.page.evaluate(nameless) == []
        levels = it.page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((e) => Number(e.tagName[1]))")
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
        it.page.keyboard.press("Tab")
        assert it.page.evaluate("document.activeElement.textContent") == "Skip to the content"
        reached = set()
        for _ in range(40):
            it.page.keyboard.press("Tab")
            reached.add(it.page.evaluate("document.activeElement.tagName"))
        assert {"A", "BUTTON", "SELECT", "DIV"} <= reached


def test_text_has_enough_contrast_in_both_schemes():
    """WCAG asks for 4.5 between text and its ground, and 3 for graphics."""
    light, dark = (dict(re.findall(r"--(\w+): (#\w{6})", part)) for part in asset("page.css").split("[data-theme=")[:2])
    for scheme, found in (("light", light), ("dark", dark)):
        for name in ("ink", "soft", "accent", "good", "warn"):
            for ground in ("paper", "ground"):
                assert contrast(found[name], found[ground]) >= 4.5, (scheme, name, ground)
        for k in range(12):
            assert contrast(found[f"c{k}"], found["paper"]) >= 3, (scheme, k)


def contrast(one, other):
    """The ratio of luminances as WCAG 2 defines it."""

    def luminance(colour):
        shares = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_a_print_fits_the_paper(browser, written, tmp_path):
    file, *_ = written
    with opened(browser, file, scheme="dark") as it:
        content = it.page.pdf(path=tmp_path / "page.pdf", format="A4", print_background=True)
        assert content.startswith(b"%PDF")
        it.page.emulate_media(media="print")
        it.page.set_viewport_size({"width": 703, "height": 1000})  # the width of A4 between its margins
        it.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert it.page.evaluate("document.documentElement.scrollWidth") <= 703
        assert it.page.evaluate("document.documentElement.dataset.theme") == "light"
        assert it.page.locator(".bar").is_hidden()
        assert it.page.locator(".reading details:not([open])").count() == 0
        it.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert it.page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_quantities_of_one_chart_have_axes_of_their_own(browser, tmp_path):
    # The criterion is a hundredth of the drift, and would be a line at zero on its axis.
    epochs = [{"criterion": 0.01 * k, "drift": 1.0 * k} for k in (1, 2)]
    rounds = rows(HEALTHY, {r: {"clients": [{"client": 0, "epochs": epochs}]} for r in range(1, 17)})
    (tmp_path / "page.html").write_text(html_of(page_of(subject(member(metrics=rounds)))))
    with opened(browser, tmp_path / "page.html") as it:
        figure = it.page.locator("#figure-epochs")

        def largest():
            ticks = figure.locator(".chart text[text-anchor=end]").all_text_contents()
            return max(map(float, ticks))

        assert largest() < 0.03
        figure.get_by_role("combobox").select_option(label="drift")
        assert largest() > 1

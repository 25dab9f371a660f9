"""The page about evaluation is done as it says."""

import re

from pages import DOCS, SHORT_OR_WHOLE, commands_of, run, working_in, write_files


@SHORT_OR_WHOLE
def test_the_page_runs(whole, tmp_path, capsys):
    text = (DOCS / "evaluation.md").read_text()
    write_files(text, tmp_path, {} if whole else {"rounds = 10": "rounds = 2", "width = 8": "width = 2"})
    commands = commands_of(text)
    assert len(commands) == 9
    with working_in(tmp_path):
        short = {line: ["--jobs", "1"] if "--methods" in line else [] for line in commands}
        printed = {line: run(line, capsys, whole, *short[line]) for line in commands}
    tables = [out for command, out in printed.items() if "--by site" in command and "compare" in command]
    assert [re.search(r"method +north +south +average", out) is not None for out in tables] == [True] * 3
    assert re.search(r"north: 0\.\d+ \(0\.\d+ to [01]\.\d+\), \d+ samples", printed["python table.py"])

"""The page about comparisons and sweeps is done as it says, in fewer rounds and trials."""

from pages import DOCS, commands_of, run_here, working_in, write_files

PAGE = DOCS / "compare-and-sweep.md"
SHORTER = {
    "rounds = 20": "rounds = 1\nsteps = 1",
    "--seeds 0-2": "--seeds 0",
    "--seeds 0,1": "--seeds 0",
    "--trials 12": "--trials 2",
    "trials=4": "trials=2, jobs=1",
}


def shortened(text):
    for full, short in SHORTER.items():
        text = text.replace(full, short)
    return text


def test_the_page_runs(tmp_path, capsys):
    text = PAGE.read_text()
    write_files(text, tmp_path, SHORTER)
    commands = [shortened(line) for line in commands_of(text)]
    assert len(commands) == 7
    printed = []
    with working_in(tmp_path):
        for line in commands:
            several = ("compare" in line or "sweep" in line) and "--runs" not in line
            printed.append(run_here(line, capsys, *(["--jobs", "1"] if several else [])))
    [searched] = [out for line, out in zip(commands, printed, strict=True) if line == "python search.py"]
    assert "{'train.lr': " in searched
    assert "feddecorr (feddecorr.beta=0.01, train.lr=0.1)" in printed[0]
    assert "fedprox (train.lr=0.05)" in printed[0]
    assert "only rows on the same data and splits are compared" in printed[1]
    assert "best: trial " in printed[3]
    assert {path.name for path in tmp_path.iterdir()} >= {"grid.csv", "grid.md", "grid.tex", "runs"}

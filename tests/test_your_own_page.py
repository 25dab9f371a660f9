"""The page about a reader's own data, model and functions is done as it says, from top to bottom."""

from pages import DOCS, SHORT_OR_WHOLE, commands_of, run, working_in, write_files

CHANGES = {"rounds = 5": "rounds = 1", "epochs = 2": "steps = 2"}
STEPS = ["--set", "train.steps=2"]


@SHORT_OR_WHOLE
def test_the_page_runs(whole, tmp_path, capsys):
    text = (DOCS / "your-own.md").read_text()
    write_files(text, tmp_path, {} if whole else CHANGES)
    commands = commands_of(text.split("```python", 1)[1])
    assert len(commands) == 30
    with working_in(tmp_path):
        for line in commands:
            rounds = [] if "train.rounds=" in line else ["--set", "train.rounds=1"]
            run(line, capsys, whole, *([*STEPS, *rounds] if line.startswith("fullrank run") else []))
    assert {path.name for path in tmp_path.iterdir()} >= {"hospitals.npz", "east", "runs"}
    names = {
        "fedavg",
        "fedbn",
        "waves",
        "median",
        "mine",
        "focal",
        "tracked",
        "growing",
        "darker",
        "wards",
        "images",
        "program",
    }
    names |= {"patients", "words", "program"}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == names
    assert len((tmp_path / "runs" / "tracked" / "accuracy.csv").read_text().splitlines()) == 3

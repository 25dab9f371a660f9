"""Exported models: the plain form, the files next to it, the check of every file, and what is rejected."""

import dataclasses
import hashlib
import importlib.util
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, load_model
from torch import nn

import small
from commands import fullrank
from fullrank import export as export_run
from fullrank import fit, load_export, load_run, run
from fullrank.deploy.export import ExportFailed
from fullrank.deploy.formats import FORMATS
from fullrank.errors import InputError
from fullrank.files import read_json
from fullrank.models import build
from fullrank.models.reparam.fuse import to_deploy
from fullrank.models.reparam.operators import operators
from fullrank.models.reparam.repghost import repghost
from fullrank.models.reparam.repvgg import repvgg
from fullrank.models.reparam.scales import write_scales

VGG = {"name": "fullrank.models.reparam.repvgg:repvgg", "widths": [4, 4, 6], "blocks": [2, 1]}
GHOST = {"name": f"{__name__}:ghost"}
MLP = {"name": "mlp", "width": 16}
onnx = pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="needs fullrank[onnx]")


def ghost(num_classes, in_channels, mode="tr"):
    """A function outside the library that makes a network with branches."""
    bottlenecks = ((4, 8, 3, 1, False), (6, 8, 3, 2, True))
    return repghost(num_classes, in_channels, bottlenecks=bottlenecks, stem=8, tail=8, features=8, mode=mode)


def trained_run(out, model=MLP, method="fedavg", rounds=1, **settings):
    values = {"data.clients": 2, "data.alpha": 10.0, "train.rounds": rounds, "engine.name": "serial", **settings}
    return run({**values, "model": model, "method.name": method}, out=out)


def prepared(a_run, number=7):
    federation = a_run._assembled().federation
    return federation.pipeline(federation.data.test.x[:number])


def raw(a_run, number=7):
    return a_run._assembled().federation.data.test.x[:number]


def assert_exported(exported, a_run, model=None, tolerance=1e-5):
    """The exported model gives for raw samples the scores that the run's model gives for prepared ones."""
    with torch.no_grad():
        expected = (model or a_run.model())(prepared(a_run))
        torch.testing.assert_close(exported(raw(a_run)), expected, rtol=tolerance, atol=tolerance)


def assert_alike(module, other, x, tolerance=1e-5):
    with torch.no_grad():
        torch.testing.assert_close(module(x), other(x), rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that tests read and copy, but do not change."""
    return trained_run(tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def copied(finished, tmp_path):
    """The same run in a directory of the test's own."""
    return shutil.copytree(finished.path, tmp_path / "run")


# The plain form


@pytest.mark.parametrize("mode", ["tr", "inf", "csla", "hs", "repopt"])
@pytest.mark.parametrize("model", [VGG, GHOST], ids=["vgg", "ghost"])
def test_a_network_with_branches_becomes_plain_convolutions(model, mode, tmp_path):
    method = "fedrepopt" if mode == "repopt" else "fedavg"
    trained = trained_run(tmp_path, {**model, "mode": mode}, method)
    done = export_run(trained)
    module = load_export(done.path, trust=True)
    assert done.facts["model"]["form"] == "plain"
    assert not any(part.norm for _, part in operators(module))
    assert all(list(part.branches) == ["kernel"] for _, part in operators(module))
    assert_exported(module, trained)
    if model is VGG:
        assert not any(isinstance(part, nn.BatchNorm2d) for part in module.modules())


def test_searched_scales_are_in_the_weights_and_their_file_is_not_needed(tmp_path):
    options = {key: value for key, value in VGG.items() if key != "name"}
    twin = build(VGG["name"], 10, 1, mode="hs", **options)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if "tail.weight" in name:
                parameter.uniform_(0.5, 1.5)
    write_scales(tmp_path / "scales.safetensors", twin, "repvgg")
    model = {**VGG, "mode": "repopt", "scales": str(tmp_path / "scales.safetensors")}
    trained = trained_run(tmp_path / "run", model, "fedrepopt")
    expected = trained.model()
    done = export_run(trained)
    (tmp_path / "scales.safetensors").unlink()
    assert "scales" not in done.facts["model"]["options"]
    assert_exported(load_export(done.path), trained, expected)


# Any network, any method


@pytest.mark.parametrize("method", ["fedetf", "moon", "fedrod", "fednh", "feddecorr+fedprox"])
def test_what_a_method_made_of_the_network_is_rebuilt_from_the_description(method, tmp_path):
    settings = {"method.moon.head": "moon"} if method == "moon" else {}
    trained = trained_run(tmp_path, method=method, **settings)
    assert_exported(load_export(export_run(trained).path), trained)


def test_a_clients_own_model(tmp_path, capsys):
    trained_run(tmp_path, method="fedrep")
    status, _, err = fullrank("export", tmp_path, capsys=capsys)
    assert status == 2
    assert "no complete global model" in err
    assert "--client K" in err
    status, out, _ = fullrank("export", tmp_path, "--client", 1, "--json", capsys=capsys)
    assert status == 0
    facts = json.loads(out)
    assert facts["path"] == str(tmp_path / "export-client-1")
    assert facts["client"] == 1
    assert facts["accuracy"] is None
    again = load_run(tmp_path)
    assert_exported(load_export(facts["path"]), again, again.client_model(1), 0)


def test_a_client_that_predicts_by_more_than_logits_is_noted(tmp_path):
    assert "fedproto" in export_run(trained_run(tmp_path / "a", method="fedproto"), client=0).facts["note"]
    assert not export_run(trained_run(tmp_path / "b", method="fedrod"), client=0).facts["note"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_run_of_a_gpu_is_exported_where_there_is_none(copied, finished):
    text = (copied / "experiment.toml").read_text().rpartition("# checksum")[0]
    for key, here, there in (("name", "serial", "cuda"), ("device", "", "cuda"), ("precision", "auto", "bfloat16")):
        assert f'{key} = "{here}"' in text
        text = text.replace(f'{key} = "{here}"', f'{key} = "{there}"')
    (copied / "experiment.toml").write_text(text)
    assert_exported(load_export(export_run(copied).path), finished, tolerance=0)


def test_a_float64_model_is_exported_in_float32(tmp_path):
    trained = trained_run(tmp_path, **{"engine.precision": "float64"})
    module = load_export(export_run(trained).path)
    assert {p.dtype for p in trained.model().parameters()} == {torch.float64}
    assert {p.dtype for p in module.parameters()} == {torch.float32}


# The description


def test_the_description_is_enough_to_use_the_weights_with_prepared_inputs(finished, tmp_path):
    done = export_run(finished, tmp_path, inputs="prepared")
    facts = read_json(tmp_path / "model.json")
    assert facts == done.facts
    data = finished._assembled().federation.data
    assert facts["classes"] == list(data.classes)
    assert facts["accuracy"] == finished.summary()["accuracy"]["last"]
    assert facts["experiment"] == finished.experiment.hash()
    given = facts["input"]
    pixels = data.test.x[:20].numpy().astype(np.float32) / given["divide_by"]
    mean, std = (np.array(given[key], dtype=np.float32)[:, None, None] for key in ("mean", "std"))
    assert_alike(load_export(tmp_path), finished.model(), torch.from_numpy((pixels - mean) / std), 0)
    torch.testing.assert_close(torch.from_numpy((pixels - mean) / std), prepared(finished, 20))
    written = facts["files"]["model.safetensors"]
    assert written["sha256"] == hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    assert str(tmp_path) not in json.dumps(facts)


# Formats


@onnx
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_all_formats_predict_as_the_run_does_for_batches_of_any_size(tmp_path, capsys):
    import onnxruntime

    trained = trained_run(tmp_path / "run", {**VGG, "mode": "tr"})
    to = tmp_path / "here"
    command = ("export", tmp_path / "run", "--format", "safetensors,onnx, torch", "--to", to)
    status, out, err = fullrank(*command, capsys=capsys)
    assert (status, err) == (0, "")
    assert "plain form" in out
    assert out.count("largest difference") == 3
    facts = json.loads((to / "model.json").read_text())["files"]
    assert {file.name for file in to.iterdir()} == {"model.json", *facts}
    assert all(file["relative_difference"] < 1e-5 for file in facts.values())
    session = onnxruntime.InferenceSession(str(to / "model.onnx"), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", 1, 8, 8]
    assert session.get_outputs()[0].name == "logits"
    program = torch.export.load(to / "model.pt2").module()
    for size in (1, 2, 5):
        x = raw(trained, size)
        with torch.no_grad():
            expected = trained.model()(prepared(trained, size))
            torch.testing.assert_close(program(x), expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], expected, rtol=1e-5, atol=1e-5)


@onnx
def test_the_opset_is_the_one_that_is_told(finished, tmp_path):
    import onnx

    facts = export_run(finished, tmp_path, ["onnx"]).facts["files"]["model.onnx"]
    assert onnx.load(tmp_path / "model.onnx").opset_import[0].version == facts["opset"]


# What models take


DESCRIBED = {
    "raw": "8-bit images (N, 1, 8, 8) with values 0 to 255 in uint8, for any N; the model normalises them itself",
    "prepared": "float32 samples (N, 1, 8, 8) for any N, divided by 255 and normalised per channel by mean [0.306] and "
    "std [0.3762] by the program",
}


@onnx
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_every_format_rejects_another_dtype_than_it_takes(finished, tmp_path):
    import onnxruntime

    export_run(finished, tmp_path, ["safetensors", "onnx", "torch"])
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].type == "tensor(uint8)"
    x = raw(finished).float()
    with pytest.raises(Exception, match="Unexpected input data type"):
        session.run(None, {"x": x.numpy()})
    with pytest.raises(RuntimeError, match="dtype mismatch"):
        torch.export.load(tmp_path / "model.pt2").module()(x)
    with pytest.raises(InputError, match=r"the model takes uint8 with values 0 to 255 .* but x is float32"):
        load_export(tmp_path)(x)


@onnx
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("inputs", ["raw", "prepared"])
def test_files_say_what_they_take(inputs, finished, tmp_path):
    import onnxruntime

    export_run(finished, tmp_path, ["onnx", "torch"], inputs=inputs)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    in_onnx = session.get_modelmeta().custom_metadata_map
    in_program = {"model.json": ""}
    torch.export.load(tmp_path / "model.pt2", extra_files=in_program)
    expected = read_json(tmp_path / "model.json")
    assert json.loads(in_onnx["input"]) == json.loads(in_program["model.json"])["input"] == expected["input"]
    assert json.loads(in_onnx["classes"]) == expected["classes"]
    given = expected["input"]
    assert (given["takes"], given["dtype"]) == (inputs, "uint8" if inputs == "raw" else "float32")
    assert given["description"] == DESCRIBED[inputs]


@onnx
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_prepared_inputs_are_taken_if_asked(finished, tmp_path, capsys):
    import onnxruntime

    command = ("export", finished.path, "--format", "onnx,torch,safetensors", "--to", tmp_path, "--input", "prepared")
    assert fullrank(*command, capsys=capsys)[0] == 0
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    for exported in (
        lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0]),
        torch.export.load(tmp_path / "model.pt2").module(),
        load_export(tmp_path),
    ):
        assert_alike(exported, finished.model(), prepared(finished))
    status, _, err = fullrank(*command[:-1], "normal", capsys=capsys)
    assert status == 2
    assert 'the input "normal" is not known; choose from raw, prepared' in err


def test_floating_images_are_normalised_inside(tmp_path):
    torch.manual_seed(0)
    x = 40 + 10 * torch.randn(30, 3, 6, 6)
    normalise = {"mean": [40.0, 41.0, 39.0], "std": [10.0, 9.0, 11.0]}
    module = build("cnn", 3, 3, width=4)
    trained = fit(module, [(x, torch.arange(30) % 3)], method="fedavg", rounds=1, set={"data.normalise": normalise})
    done = export_run(trained, tmp_path, ["torch"])
    by_hand = (x - torch.tensor([40.0, 41.0, 39.0]).view(3, 1, 1)) / torch.tensor([10.0, 9.0, 11.0]).view(3, 1, 1)
    program = torch.export.load(done.path / "model.pt2").module()
    with torch.no_grad():
        torch.testing.assert_close(program(x[:5]), trained.model()(by_hand[:5]), rtol=1e-5, atol=1e-5)
    assert done.facts["input"]["description"] == (
        "float32 samples (N, 3, 6, 6) for any N, as the training data had them; the model normalises them itself"
    )


def test_an_export_of_an_earlier_version_takes_prepared_inputs(finished, tmp_path):
    facts = export_run(finished, tmp_path).facts
    for key in ("takes", "dtype", "description", "cropped_to"):
        del facts["input"][key]
    (tmp_path / "model.json").write_text(json.dumps({**facts, "format": 1}))
    assert_alike(load_export(tmp_path), finished.model(), prepared(finished), 0)


# The check


def _some_bytes(module, example, path, card):
    path.write_bytes(b"no model")


def test_a_file_that_does_not_hold_is_not_kept_and_an_earlier_export_stays(copied, capsys, monkeypatch):
    assert fullrank("export", copied, capsys=capsys)[0] == 0
    before = {file.name: file.read_bytes() for file in (copied / "export").iterdir()}

    weights = FORMATS["safetensors"]

    def a_little_off(path, module):
        right = weights.read(path, module)
        return lambda x: right(x) * 1.0005

    spoilt = dataclasses.replace(FORMATS["torch"], write=weights.write, read=a_little_off)
    monkeypatch.setitem(FORMATS, "torch", spoilt)
    status, out, err = fullrank("export", copied, "--format", "safetensors,torch", capsys=capsys)
    assert status == 1
    assert out == ""
    assert "model.pt2 was removed" in err
    assert "5.0e-04 of the largest" in err
    assert {file.name: file.read_bytes() for file in (copied / "export").iterdir()} == before


def test_a_file_that_cannot_be_read_back_is_not_kept(finished, tmp_path, monkeypatch):
    monkeypatch.setitem(FORMATS, "safetensors", dataclasses.replace(FORMATS["safetensors"], write=_some_bytes))
    with pytest.raises(ExportFailed, match="cannot be read back"):
        export_run(finished, tmp_path)
    assert list(tmp_path.iterdir()) == []


# Where files go


def test_another_export_replaces_the_files_of_the_one_before(copied):
    export_run(copied, formats=["safetensors", "torch"])
    done = export_run(copied, formats="torch")
    assert {file.name for file in done.path.iterdir()} == {"model.json", "model.pt2"}
    with pytest.raises(InputError, match='in the format "safetensors" as well'):
        load_export(done.path)


def test_files_that_are_no_export_are_kept(finished):
    before = (finished.path / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match="is not an export of fullrank; choose another --to"):
        export_run(finished, finished.path)
    assert (finished.path / "model.safetensors").read_bytes() == before


# A program's own module


class Halves(nn.Module):
    """Branches on the size of its batch, which no trace for all sizes can follow."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(small.WIDTH, small.CLASSES)

    def forward(self, x):
        return self.head(x if int(x.shape[0]) % 2 else x * 2)


def a_fit(module, **arguments):
    clients = [(torch.randn(20, small.WIDTH), torch.arange(20) % small.CLASSES) for _ in range(2)]
    return fit(module, clients, method="fedavg", rounds=1, **arguments)


def test_a_programs_module_goes_from_the_run_that_fit_returns(tmp_path):
    trained = a_fit(small.normed(dtype=torch.float32), out=tmp_path / "run")
    with pytest.raises(InputError, match=r"pass the same module, clients and settings to fullrank\.fit"):
        export_run(tmp_path / "run")
    done = export_run(trained, formats=["safetensors", "torch"])
    x = torch.randn(5, small.WIDTH)
    assert_alike(torch.export.load(done.path / "model.pt2").module(), trained.model(), x)
    with pytest.raises(InputError, match="a program gave"):
        load_export(done.path)
    own = small.normed(seed=1, dtype=torch.float32).eval()
    load_model(own, done.path / "model.safetensors")
    assert_alike(own, trained.model(), x)
    assert done.facts["classes"] == [str(c) for c in range(small.CLASSES)]


def test_a_programs_module_with_branches_is_loaded_into_its_plain_form(tmp_path):
    def made():
        return repvgg(small.CLASSES, 1, widths=(4, 4, 6), blocks=(2, 1), mode="repopt")

    x = torch.randn(20, 1, 8, 8)
    trained = fit(made(), [(x, torch.arange(20) % small.CLASSES)], method="fedrepopt", rounds=1)
    done = export_run(trained, tmp_path / "export")
    with pytest.raises(InputError, match=r"create it there, give it its plain form by .*to_deploy, and load"):
        load_export(done.path)
    own = to_deploy(made()).eval()
    load_model(own, done.path / "model.safetensors")
    assert_alike(own, trained.model(), x)


def test_a_run_in_no_directory_is_told_where_to_go(tmp_path):
    trained = a_fit(small.plain(dtype=torch.float32))
    with pytest.raises(InputError, match="to= must name one"):
        export_run(trained)
    assert (
        load_file(export_run(trained, tmp_path).path / "model.safetensors").keys()
        == trained.model().state_dict().keys()
    )


def test_a_forward_that_cannot_be_traced_is_rejected_and_its_weights_are_not(tmp_path):
    trained = a_fit(Halves())
    with pytest.raises(InputError, match=r'cannot trace the forward of Halves.*"safetensors" needs no trace'):
        export_run(trained, tmp_path / "new", ["torch"])
    assert list(tmp_path.iterdir()) == []
    assert export_run(trained, tmp_path).facts["files"]["model.safetensors"]["same_class"] == 40


# InputErrors


def test_errors_are_one_sentence(copied, tmp_path, capsys):
    (tmp_path / "file").touch()
    for arguments, words in (
        ((tmp_path / "nowhere",), "there is no run"),
        ((tmp_path,), "is not a run directory"),
        ((copied, "--format", "safetensor"), 'did you mean "safetensors"?'),
        ((copied, "--format", ","), "choose from safetensors, onnx, torch"),
        ((copied, "--client", 9), "clients are 0 to 1"),
        ((copied, "--to", tmp_path / "file"), "is a file"),
        ((copied, "--to", tmp_path / "file" / "below"), "cannot be written"),
    ):
        status, out, err = fullrank("export", *arguments, capsys=capsys)
        assert (status, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1


def test_an_unfinished_run_is_rejected(copied, capsys):
    for name in ("model.safetensors", "summary.json"):
        (copied / name).unlink()
    text = (copied / "experiment.toml").read_text().rpartition("# checksum")[0]
    (copied / "experiment.toml").write_text(text.replace("rounds = 1\n", "rounds = 4\n"))
    status, _, err = fullrank("export", copied, capsys=capsys)
    assert status == 2
    assert "not finished (1 of 4 rounds)" in err
    with pytest.raises(InputError, match="not finished"):
        export_run(load_run(copied))


def test_a_run_whose_model_was_not_kept_is_told_from_one_that_can_continue(copied, capsys):
    (copied / "model.safetensors").unlink()
    shutil.copytree(copied, copied.with_name("bare"))
    shutil.rmtree(copied.with_name("bare") / "checkpoints")
    for path in (copied, copied.with_name("bare")):
        status, _, err = fullrank("export", path, capsys=capsys)
        assert (status, err.count("\n")) == (2, 1)
        assert "has all its rounds (1), but no model.safetensors: it was not kept" in err
        assert "finished" not in err
    (copied / "summary.json").unlink()
    status, _, err = fullrank("export", copied, capsys=capsys)
    assert status == 2
    assert "was stopped between its last round and its end" in err
    assert "continues it" in err


def test_a_missing_extra_is_named_before_anything_is_done(copied, capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.startswith("onnx") else find(name))
    status, _, err = fullrank("export", copied, "--format", "onnx", capsys=capsys)
    assert status == 2
    assert "needs onnx, onnxscript, onnxruntime: pip install 'fullrank[onnx]'" in err
    assert not (copied / "export").exists()

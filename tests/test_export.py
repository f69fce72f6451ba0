"""An exported model: it writes what the live one wrote, in files of any size, with all that the source folder held."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_model import make_tiny_model
from transformers import AutoModelForCausalLM

from ttc_esopt import runner
from ttc_esopt.engines import Request, Sampling, load_engine
from ttc_esopt.engines.base import expect_size
from ttc_esopt.engines.export import stored_names, unloaded
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.es.noise import NoiseKind

FULL, LOW = NoiseKind("full"), NoiseKind()
WARM = Sampling(max_tokens=24, temperature=0.8)
REQUESTS = [Request(f"def f{i}(x):", i) for i in range(6)]
EXTRA = {"mtp.layers.0.weight": torch.arange(12.0).reshape(3, 4), "vision.bias": torch.ones(5, dtype=torch.bfloat16)}


def engine_of(folder, kind=FULL, dtype="float32"):
    return load_engine(str(folder), noise=kind, dtype=dtype, device="cpu", threads=1)


def names_in(folder):
    """Tensor names as the index says, checked against the files."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    for file in set(index["weight_map"].values()):
        with safe_open(folder / file, framework="pt") as stored:
            assert set(stored.keys()) == {name for name, where in index["weight_map"].items() if where == file}
    assert {file.name for file in folder.glob("*.safetensors")} == set(index["weight_map"].values())
    tensors = [tensor for file in folder.glob("*.safetensors") for tensor in load_file(file).values()]
    assert index["metadata"]["total_size"] == sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return set(index["weight_map"])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("plain") / "m")


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A checkpoint with tensors that the model class does not know, and small files beside it."""
    folder = make_tiny_model(tmp_path_factory.mktemp("extended") / "m", tied=False)
    save_file(load_file(folder / "model.safetensors") | EXTRA, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "do_sample": True}))
    (folder / "preprocessor_config.json").write_text('{"size": 3}')
    (folder / "LICENSE").write_text("do as you like")
    return folder


@pytest.mark.parametrize("size", ["5GB", "100KB"])
@pytest.mark.parametrize(("kind", "dtype"), [(FULL, "float32"), (LOW, "float32"), (FULL, "bfloat16")], ids=str)
def test_it_writes_the_same_tokens_and_has_the_same_fingerprint(plain, tmp_path, kind, dtype, size):
    engine = engine_of(plain, kind, dtype)
    engine.step([5, 6], [0.05, -0.02])
    engine.export(tmp_path / "out", size)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == (1 if size == "5GB" else pytest.approx(4, abs=3))
    again = engine_of(tmp_path / "out", kind, dtype)
    assert again.fingerprint() == engine.fingerprint() and again.sha256() == engine.sha256()
    assert again.generate(REQUESTS, WARM) == engine.generate(REQUESTS, WARM)


@pytest.mark.parametrize("size", ["5GB", "100KB", "50B"])
def test_what_the_model_class_leaves_out_is_carried_along(extended, tmp_path, size):
    engine = engine_of(extended)
    assert engine.describe()["frozen_tensors"] == 2
    assert engine.describe()["frozen_first"] == "mtp.layers.0.weight, vision.bias"
    engine.step([5, 6], [0.05, -0.02])
    out = tmp_path / "out"
    engine.export(out, size)
    assert names_in(out) == set(stored_names(extended))
    held = {name: tensor for file in out.glob("*.safetensors") for name, tensor in load_file(file).items()}
    for name, tensor in EXTRA.items():
        assert torch.equal(held[name], tensor) and held[name].dtype == tensor.dtype
    again = engine_of(out)
    assert again.fingerprint() == engine.fingerprint()
    assert again.generate(REQUESTS, WARM) == engine.generate(REQUESTS, WARM)
    again.export(tmp_path / "twice", size)
    assert names_in(tmp_path / "twice") == set(stored_names(extended))


def test_small_files_come_along(extended, tmp_path):
    engine_of(extended).export(tmp_path / "out")
    told = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (told["temperature"], told["do_sample"]) == (0.6, True)
    for name in ("preprocessor_config.json", "LICENSE"):
        assert (tmp_path / "out" / name).read_bytes() == (extended / name).read_bytes()
    assert engine_of(tmp_path / "out").tokenizer.chat_template == engine_of(extended).tokenizer.chat_template


def test_names_that_a_class_passes_over_in_silence_are_found_and_tied_ones_are_none(plain):
    model = AutoModelForCausalLM.from_pretrained(plain)
    names = [*stored_names(plain), "lm_head.weight", "model.layers.61.eh_proj.weight", "other.weight"]
    assert unloaded(model, names, []) == []
    model._keys_to_ignore_on_load_unexpected = [r"model\.layers\.61.*"]
    assert unloaded(model, names, ["other.weight"]) == ["model.layers.61.eh_proj.weight", "other.weight"]


def test_a_checkpoint_in_torch_files_is_read_too(extended, tmp_path):
    folder = make_tiny_model(tmp_path / "m", tied=False)
    torch.save(load_file(folder / "model.safetensors") | EXTRA, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    engine = engine_of(folder)
    engine.export(tmp_path / "out")
    assert names_in(tmp_path / "out") == set(stored_names(extended))


@pytest.mark.parametrize("text", ["5", "GB", "0GB", "-1GB", "5 GB ", "5PB", "1e9"])
def test_a_size_that_is_none_is_refused(text):
    with pytest.raises(ConfigurationError, match=r"Expected a size such as 5GB or 300MB, got .*--shard-size"):
        expect_size(text)


def test_a_wrong_size_is_told_before_the_run_is_read(tmp_path):
    with pytest.raises(ConfigurationError, match="--shard-size"):
        runner.export(tmp_path / "no run", tmp_path / "out", shard_size="5 giga")


def test_sizes_are_those_of_transformers():
    assert [expect_size(text) for text in ("5GB", "300MiB", "1.5KB", "7B")] == [5 * 10**9, 300 << 20, 1500, 7]

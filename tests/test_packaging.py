"""What people install holds what stands here: commands, catalogue, shipped jobs."""

import tomllib
from importlib import metadata, resources
from pathlib import Path

import pytest

import jointopt

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_the_same_everywhere() -> None:
    assert PROJECT["version"] == jointopt.__version__ == metadata.version("jointopt")
    assert f"## {jointopt.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["cli", "models", "studies"])
def test_folders_at_the_top_are_packages_through_links(name: str) -> None:
    link = ROOT / "jointopt" / name
    assert link.is_symlink()
    assert link.resolve() == ROOT / name
    assert resources.files(f"jointopt.{name}").joinpath("__init__.py").is_file()


def test_the_public_verbs_exist() -> None:
    for verb in jointopt.__all__:
        assert getattr(jointopt, verb) is not None
    with pytest.raises(AttributeError, match="no attribute 'porpose'"):
        _ = jointopt.porpose


def test_every_shipped_job_travels_in_the_wheel() -> None:
    jobs = [
        entry.name for entry in resources.files("jointopt.studies").iterdir() if entry.joinpath("job.yaml").is_file()
    ]
    assert set(jobs) == {path.parent.name for path in (ROOT / "studies").glob("*/job.yaml")} != set()


def test_what_is_imported_is_declared() -> None:
    declared = {requirement.split(">")[0].split("<")[0] for requirement in PROJECT["dependencies"]}
    others = {"moocore", "psutil", "scikit-learn", "threadpoolctl", "tree-sitter", "tree-sitter-bash", "xgboost-cpu"}
    assert (
        declared
        == {"click", "jinja2", "numpy", "scipy", "pandas", "plotly", "pyyaml", "optuna", "rich", "sqlalchemy"} | others
    )

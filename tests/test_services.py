"""Which skips fail where tests run in CI."""

import pytest

SKIPS = """
import pytest

def test_a(): pytest.skip("Slurm is not installed")
def test_b(): pytest.skip("PyTorch sees a GPU here")
"""


@pytest.mark.parametrize(("ci", "failed"), [("1", 1), ("", 0)])
def test_in_ci_a_skip_fails_unless_its_reason_is_listed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str, failed: int
) -> None:
    monkeypatch.setenv("CI", ci)
    pytester.makepyfile(SKIPS)
    pytester.runpytest("-p", "tests.services").assert_outcomes(failed=failed, skipped=2 - failed)


def test_a_module_that_is_skipped_whole_fails_in_ci_too(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "1")
    pytester.makepyfile("import pytest\npytest.importorskip('no_such_module')")
    pytester.runpytest("-p", "tests.services").assert_outcomes(errors=1)


def test_what_trains_bears_the_mark_of_the_long_tests_by_its_fixture(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    long: x\n    services: x")
    pytester.makepyfile("def test_a(trained): pass\ndef test_b(): pass")
    ran = pytester.runpytest("-p", "tests.services", "--collect-only", "-q", "-m", "not long")
    ran.assert_outcomes(deselected=1)

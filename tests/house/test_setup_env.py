"""`make` sets up once, quickly finds that nothing is to do, and stops with words that help."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import setup_env


def stand_in(path: str, clear: bool, with_pip: bool, prompt: str) -> None:
    """What is left of `venv.create` when all is mocked: the folder and its configuration."""
    assert clear
    assert with_pip
    shutil.rmtree(path, ignore_errors=True)
    Path(path).mkdir()
    Path(path, "pyvenv.cfg").write_text(f"prompt = {prompt!r}\n")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with a lock and no environment; making one is recorded instead of done."""
    (tmp_path / "requirements.lock").write_text("six==1.17.0\n")
    monkeypatch.setattr(setup_env, "REPO", str(tmp_path))
    monkeypatch.setattr(setup_env, "LOCK", str(tmp_path / "requirements.lock"))
    monkeypatch.setattr(setup_env, "VENV", str(tmp_path / ".venv"))
    monkeypatch.setattr(setup_env, "STAMP", str(tmp_path / ".venv" / "memopt.stamp"))
    monkeypatch.setattr("venv.create", stand_in)
    return tmp_path


@pytest.fixture
def installs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The arguments of every pip call."""
    calls: list[list[str]] = []
    monkeypatch.setattr(setup_env, "pip", lambda arguments, what: calls.append(arguments))
    return calls


def words(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        setup_env.main()
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_lock_first_then_the_project_alone(clone: Path, installs: list[list[str]]) -> None:
    setup_env.main()
    assert installs == [["-r", str(clone / "requirements.lock")], ["--no-deps", "-e", str(clone)]]


def test_second_time_nothing_and_again_after_a_new_lock(
    clone: Path, installs: list[list[str]]
) -> None:
    setup_env.main()
    setup_env.main()
    assert len(installs) == 2
    (clone / "requirements.lock").write_text("six==1.16.0\n")
    setup_env.main()
    assert len(installs) == 4


def test_a_broken_off_installation_starts_anew(
    clone: Path, installs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(arguments: list[str], what: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(setup_env, "pip", killed)
        setup_env.main()
    setup_env.main()
    assert len(installs) == 2


def test_old_python_is_told_which_is_needed(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup_env.sys, "version_info", (3, 10, 13))
    said = words(capsys)
    assert "this is Python 3.10" in said
    assert "needs 3.11 or newer" in said
    assert "PYTHON=" in said


def test_missing_venv_module_is_named_with_its_package(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(setup_env.sys.modules, "ensurepip", None)
    said = words(capsys)
    assert "no venv module" in said
    assert "apt-get install python3." in said


def test_short_disk_is_measured(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1.25e9))
    said = words(capsys)
    assert "1.2 GB free" in said
    assert f"about {setup_env.NEEDED_GB} GB" in said


def test_a_foreign_environment_is_left_alone(
    clone: Path, installs: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    (clone / ".venv").mkdir()
    (clone / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert "left alone" in words(capsys)
    assert installs == []


def test_a_failing_pip_shows_its_end_and_the_free_space(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binaries = clone / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").write_text("#!/bin/sh\necho 'No space left on device'; exit 1\n")
    (binaries / "python").chmod(0o755)
    with pytest.raises(SystemExit):
        setup_env.pip(["-r", "requirements.lock"], "requirements.lock")
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert "GB are free" in said

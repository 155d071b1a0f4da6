"""Makes .venv from requirements.lock; does nothing where it is up to date.

    python3 tools/setup_env.py

Needs only a bare Python (one that is too old still runs this file far enough to be told so) and
touches nothing outside this folder but pip's download cache.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(REPO, ".venv")
LOCK = os.path.join(REPO, "requirements.lock")
STAMP = os.path.join(VENV, "memopt.stamp")  # the hash of what .venv was made from
PROMPT = "memopt"  # by it an environment made here is told from anybody else's
OLDEST = (3, 11)
NEWER = ("python3.11", "python3.12", "python3.13", "python3.14")  # looked for when it is too old
NEEDED_GB = 5  # with a CPU build of torch; the CUDA build takes some 5 GB more


def stop(message):
    """Ends with the message, as every command of the project does."""
    sys.stderr.write("error: " + message + "\n")
    sys.exit(2)


def fingerprint():
    """What .venv depends on: the lock, the Python that makes it, and its own place."""
    with open(LOCK, "rb") as file:
        return hashlib.sha256(file.read() + sys.version.encode() + VENV.encode()).hexdigest()


def read(path):
    """The text of a file, empty where there is none."""
    if not os.path.exists(path):
        return ""
    with open(path) as file:
        return file.read()


def check_python():
    """Asks for a Python that is new enough and can make environments."""
    have = "{}.{}".format(*sys.version_info[:2])
    if sys.version_info < OLDEST:
        newer = [name for name in NEWER if shutil.which(name)]
        stop(
            "this is Python {} ({}), memopt needs {}.{} or newer.\n"
            "  Name one: make reproduce PYTHON={}".format(
                have, sys.executable, OLDEST[0], OLDEST[1], newer[0] if newer else "/path/to/python"
            )
        )
    try:
        import ensurepip  # noqa: F401  (Debian and Ubuntu package it apart)
        import venv  # noqa: F401
    except ImportError:
        stop(
            "{} has no venv module, so it cannot make an environment.\n"
            "  On Debian and Ubuntu: apt-get install python{}-venv".format(sys.executable, have)
        )


def check_place():
    """Asks for room, and for a .venv that is ours to replace."""
    ours = "prompt = '{}'".format(PROMPT) in read(os.path.join(VENV, "pyvenv.cfg"))
    if os.path.exists(VENV) and not ours:
        stop(
            "{} was not made by this project's make, so it is left alone.\n"
            "  Move or remove it, then run the same command again.".format(VENV)
        )
    free = shutil.disk_usage(REPO).free / 1e9
    if free < NEEDED_GB and not os.path.exists(VENV):  # an old .venv makes room for the new one
        stop(
            "{:.1f} GB free in {}, the environment needs about {} GB "
            "(10 GB with the CUDA build of torch).".format(free, REPO, NEEDED_GB)
        )


def pip(arguments, what):
    """Runs pip of the environment; shows one line of progress, keeps the rest in a log."""
    log_path = os.path.join(VENV, "install.log")
    command = [os.path.join(VENV, "bin", "python"), "-m", "pip", "install", "--progress-bar=off"]
    seen = 0
    with open(log_path, "a") as log:
        process = subprocess.Popen(
            command + arguments,
            cwd=REPO,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
        )
        for line in process.stdout:
            log.write(line)
            seen += line.startswith(("Collecting", "Processing"))
            installing = line.startswith("Installing collected")
            if seen and (sys.stdout.isatty() or installing):
                end = ", now installing\n" if installing else ""
                sys.stdout.write("\r  {}: {} packages found{}".format(what, seen, end))
                sys.stdout.flush()
    if process.wait():
        with open(log_path) as log:
            tail = "".join(log.readlines()[-12:])
        free = shutil.disk_usage(REPO).free / 1e9
        stop(
            "pip could not install {}; the end of {}:\n{}\n"
            "  {:.1f} GB are free on this disk. The same command tries again.".format(
                what, log_path, tail, free
            )
        )


def main():
    """The command line."""
    if os.path.realpath(sys.prefix) == os.path.realpath(VENV):  # called from an activated .venv
        base = sys._base_executable
        os.execv(base, [base, os.path.abspath(__file__)])
    check_python()
    wanted = fingerprint()
    if read(STAMP) == wanted:
        return
    check_place()
    started = time.time()
    version = "{}.{}.{}".format(*sys.version_info[:3])
    print("[memopt] making .venv with Python {} ({})".format(version, sys.executable))
    import venv

    venv.create(VENV, clear=True, with_pip=True, prompt=PROMPT)
    print("[memopt] installing the packages of requirements.lock: some minutes, ~3 GB on disk")
    sys.stdout.flush()
    pip(["-r", LOCK], "requirements.lock")
    pip(["--no-deps", "-e", REPO], "memopt")
    with open(STAMP, "w") as file:
        file.write(wanted)
    print("[memopt] .venv is ready after {:.0f} s".format(time.time() - started))
    sys.stdout.flush()


if __name__ == "__main__":
    main()

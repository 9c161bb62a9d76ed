"""Drives CMake so that pip can build the native modules from ``csrc/``.

They are ``mario_envpool/_core``, ``trainer/_native`` and, where jax is installed,
``mario_envpool/_xla``. ``tests/support/testing_module.py`` builds the module of tests.

Everything else about the package is declared in ``pyproject.toml``. An editable
install keeps its build folder (``build/editable-*``), so that the next build
compiles only changed files. ``MARIO_NATIVE=1`` tunes the result
for this machine only.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
WINDOWS = sys.platform == "win32"
CORE = "mario_envpool._core"


def require_tools() -> str:
    """Returns the path of cmake; exits with one line if a tool is missing."""
    wanted = os.environ.get("CXX", "")
    candidates = [shlex.split(wanted)[0]] if wanted else ["c++", "g++", "clang++"]
    # On Windows CMake finds the compilers of Visual Studio, which are not on PATH.
    if not WINDOWS and not any(shutil.which(name) for name in candidates):
        raise SystemExit(
            f"mario-envpool: no C++ compiler found (looked for {', '.join(candidates)})"
            "; install one with C++20, for example 'apt-get install g++', or set CXX."
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise SystemExit(
            f"mario-envpool: Python's C headers are missing ({header}); install them, "
            "for example 'apt-get install python3-dev'."
        )
    cmake = shutil.which("cmake")
    if cmake is None:
        raise SystemExit(
            "mario-envpool: cmake not found; install with 'pip install cmake ninja', "
            "or let pip fetch it by leaving out --no-build-isolation."
        )
    return cmake


class CMakeBuild(build_ext):
    """Configures, builds and installs the extensions with CMake."""

    def build_extension(self, ext: Extension) -> None:
        """Builds all extensions in the folders that setuptools expects.

        In an editable install setuptools then copies them into the source tree.
        """
        if ext.name != CORE:
            return  # built with CORE; _xla only if CMake finds XLA's headers
        cmake = require_tools()
        prefix = Path(self.get_ext_fullpath(ext.name)).resolve().parent.parent
        build = Path(self.build_temp).resolve() / "cmake"
        if self.editable_mode:
            tag = hashlib.sha1(sys.prefix.encode()).hexdigest()[:8]
            build = ROOT / "build" / f"editable-{tag}"
        native = os.environ.get("MARIO_NATIVE", "") not in ("", "0")
        kind = "Debug" if self.debug else "Release"
        configure = [
            cmake,
            *("-S", str(ROOT), "-B", str(build)),
            f"-DCMAKE_BUILD_TYPE={kind}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DMARIO_NATIVE={'ON' if native else 'OFF'}",
            f"-Dpybind11_DIR={pybind11_cmake_dir(self.editable_mode)}",
        ]
        ninja = shutil.which("ninja")
        if WINDOWS:  # the CPU needs labels as values, which clang-cl has
            configure += ["-T", "ClangCL"]
        elif ninja is not None:
            configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        if not self.editable_mode:  # removes files of an earlier interpreter
            shutil.rmtree(build, ignore_errors=True)
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
        try:
            subprocess.run(configure, check=True)
            for action in (
                ["--build", str(build), "-j", jobs],
                ["--install", str(build), "--prefix", str(prefix)],
            ):
                subprocess.run([cmake, *action, "--config", kind], check=True)
        except subprocess.CalledProcessError as error:
            raise SystemExit(
                "mario-envpool: the C++ build failed (see the compiler's or CMake's "
                f"message above); the command was: {shlex.join(error.cmd)}"
            ) from None


def pybind11_cmake_dir(keep: bool) -> str:
    """Returns the folder of pybind11's CMake package; `keep` copies it below build/.

    Each of pip's isolated builds has pybind11 in a new folder, with which every file
    would be compiled again.
    """
    try:
        import pybind11
    except ImportError:
        raise SystemExit(
            "mario-envpool: pybind11 is missing; 'pip install pybind11', or let pip "
            "fetch it by leaving out --no-build-isolation."
        ) from None
    cmake_dir = Path(pybind11.get_cmake_dir())
    if not keep:
        return str(cmake_dir)
    package = Path(pybind11.__file__).parent
    kept = ROOT / "build" / f"pybind11-{pybind11.__version__}"
    if not kept.exists():
        part = kept.with_name(f"{kept.name}.{os.getpid()}")
        shutil.copytree(package, part)
        part.rename(kept)
    return str(kept / cmake_dir.relative_to(package))


setup(
    ext_modules=[
        Extension(CORE, sources=[]),
        Extension("trainer._native", sources=[]),
        Extension("mario_envpool._xla", sources=[], optional=True),
    ],
    cmdclass={"build_ext": CMakeBuild},
)

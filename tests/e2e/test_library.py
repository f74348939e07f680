"""The libraries and what `make install` puts where: exported names, calla.h in C and C++, the
examples built against an installed copy through pkg-config, and `make uninstall`."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, TINY

MAC = sys.platform == "darwin"
PREFIX = "/opt/calla"
HEADER = (ROOT / "include/calla.h").read_text()
FUNCTIONS = set(re.findall(r"^[a-z].*?\*?(calla_[a-z_]+)\(", HEADER, re.M)) - {"calla_callback"}
EXAMPLES = {"generate": ([TINY, 'Define "hot".'], "hot (adjective): used of physical heat."),
            "tools": ([TINY], 'call: get_weather {"city": "Rome"}\nIt is sunny in Rome, at 28 degrees')}


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=ROOT,
                          timeout=300, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make(target, folder, *variables):
    return run(os.environ.get("MAKE", "make"), target, f"DESTDIR={folder}", f"PREFIX={PREFIX}",
               *variables)


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")
            if path.is_symlink() or not path.is_dir()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    make("install", folder)
    return folder


@pytest.fixture
def pkg_config(installed):
    """pkg-config that finds the installed calla; its flags as a list."""
    prefix = str(installed) + PREFIX
    environment = {**os.environ, "PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig:"
                   + os.environ.get("PKG_CONFIG_PATH", ""), "PKG_CONFIG_SYSROOT_DIR": str(installed)}
    return lambda *arguments: run("pkg-config", *arguments, "calla", env=environment).split()


def exported(path, *options):
    """The global names that a library defines."""
    names = {line.split()[-1] for line in run("nm", "-g", *options, path).splitlines()
             if re.match(r"^[0-9a-f]+ [A-TV-Z] ", line)}
    return {name.removeprefix("_") for name in names} if MAC else names


def test_only_calla_names_are_exported(installed):
    lib = installed / PREFIX[1:] / "lib"
    assert len(FUNCTIONS) >= 9 and "calla_open" in FUNCTIONS
    assert exported(lib / "libcalla.a") == FUNCTIONS
    shared = lib / ("libcalla.dylib" if MAC else "libcalla.so")
    assert exported(shared, *([] if MAC else ["-D"])) == FUNCTIONS


@pytest.mark.skipif(MAC, reason="macOS has install names instead of sonames")
def test_shared_library_has_a_versioned_name(installed):
    version = run(installed / PREFIX[1:] / "bin/calla", "--version").split()[1]
    lib = installed / PREFIX[1:] / "lib"
    abi = version.rsplit(".", 1)[0]
    assert os.readlink(lib / "libcalla.so") == f"libcalla.so.{abi}"
    assert os.readlink(lib / f"libcalla.so.{abi}") == f"libcalla.so.{version}"
    assert f"[libcalla.so.{abi}]" in run("readelf", "-d", lib / f"libcalla.so.{version}")


@pytest.mark.parametrize("compiler, language", [
    ("gcc", ["c", "-std=c99"]), ("clang", ["c", "-std=c99"]), ("g++", ["c++", "-std=c++11"]),
    ("clang++", ["c++", "-std=c++11"]), ("clang", ["c++", "-std=c++20"])])
def test_header_alone(compiler, language):
    """calla.h needs nothing before it and no extension of the language."""
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    run(compiler, "-x", *language, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only",
        "-Iinclude", "-", input='#include "calla.h"\n#include "calla.h"\n')


def test_header_length_and_contents():
    """It stays short enough to be read, and shows nothing of the inside."""
    assert HEADER.count("\n") < 300
    assert set(re.findall(r"#include (.*)", HEADER)) == {"<stddef.h>", "<stdint.h>"}


def test_cpp_program(installed, pkg_config, tmp_path):
    source = tmp_path / "program.cpp"
    source.write_text("""#include <calla.h>
        #include <cstdio>
        int main(int, char **argv)
        {
            calla_model *model;
            calla_error error;
            if (calla_open(argv[1], nullptr, &model, &error) != CALLA_OK)
                return std::puts(error.message), 3;
            calla_close(model);
            return 0;
        }""")
    run("g++", "-std=c++11", source, *pkg_config("--cflags", "--libs"), "-o", tmp_path / "program")
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{installed}{PREFIX}/lib"}
    run(tmp_path / "program", TINY, env=environment)
    done = subprocess.run([tmp_path / "program", "/no/such"], env=environment, capture_output=True)
    assert done.returncode == 3 and b"/no/such" in done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("kind", ["shared", "static"])
def test_examples_against_the_installed_copy(installed, pkg_config, tmp_path, name, kind):
    arguments, wanted = EXAMPLES[name]
    program = tmp_path / name
    flags = pkg_config("--cflags", "--libs", *(["--static"] if kind == "static" else []))
    if kind == "static":
        if MAC:
            pytest.skip("macOS has no static libc")
        flags.insert(0, "-static")
    run("cc", ROOT / "examples" / f"{name}.c", *flags, "-o", program)
    needed = run("readelf", "-d", program) if not MAC else ""
    assert ("libcalla.so." in needed) == (kind == "shared" and not MAC)
    lib = f"{installed}{PREFIX}/lib"
    out = run(program, *arguments, env={**os.environ, "LD_LIBRARY_PATH": lib, "DYLD_LIBRARY_PATH": lib})
    assert out.startswith(wanted), out


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_build_folder(name, tmp_path):
    """The same programs on libcalla.a, and what they say of a wrong folder."""
    run("make", "examples")
    arguments, wanted = EXAMPLES[name]
    assert run(ROOT / "build/examples" / name, *arguments).startswith(wanted)
    done = subprocess.run([ROOT / "build/examples" / name, tmp_path, *arguments[1:]],
                          capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(f"{name}: ") and done.stderr.count("\n") == 1


def test_examples_are_all_tested():
    assert {path.stem for path in (ROOT / "examples").glob("*.c")} == set(EXAMPLES)


def test_installed_program_and_files(installed):
    found = {name.removeprefix(PREFIX[1:] + "/") for name in files(installed)}
    assert all(name.startswith(PREFIX[1:]) for name in files(installed))
    assert {"bin/calla", "include/calla.h", "lib/libcalla.a", "lib/pkgconfig/calla.pc",
            "share/man/man1/calla.1", "share/bash-completion/completions/calla",
            "share/zsh/site-functions/_calla", "share/fish/vendor_completions.d/calla.fish",
            "share/doc/calla/LICENSE", "share/doc/calla/licenses/jansson.txt"} <= found
    out = run(installed / PREFIX[1:] / "bin/calla", "run", TINY, "Define hot.", "--no-think",
              "--temperature", "0")
    assert out == "hot (adjective): used of physical heat.\n"
    described = (installed / PREFIX[1:] / "lib/pkgconfig/calla.pc").read_text()
    assert f"prefix={PREFIX}\n" in described and "libdir=${prefix}/lib\n" in described


def test_version_is_the_same_everywhere(installed, pkg_config):
    version = run(installed / PREFIX[1:] / "bin/calla", "--version").split()[1]
    assert pkg_config("--modversion") == [version]


def test_uninstall_leaves_nothing(tmp_path):
    """Also with folders of the user's choice; files of others stay."""
    places = ("LIBDIR=/opt/calla/lib64", "BINDIR=/sbin")
    make("install", tmp_path, *places)
    assert {"sbin/calla", "opt/calla/lib64/libcalla.a"} <= files(tmp_path)
    other = tmp_path / "opt/calla/lib64/libother.a"
    other.touch()
    make("uninstall", tmp_path, *places)
    assert files(tmp_path) == {"opt/calla/lib64/libother.a"}
    assert not (tmp_path / "opt/calla/share/doc/calla").exists()
    make("uninstall", tmp_path, *places)  # a second time does no harm

#!/bin/sh
# Looks at a folder whose tests are to be run, and makes a place for what the run will write. POSIX sh with find.
# Runs in the folder. $1: the run's id. $2: the plan, where the command is known already; then nothing is looked at.
#
# Output, after "@@ look 1" (what comes before was printed by start-up files), a line for each thing:
#
#   @@ folder PATH      the folder, without links
#   @@ place PATH       a new folder of the user's own: in it, `mark` is older than what the run writes
#   @@ name NAME        a file, relative to the folder, that tells of tests
#   @@ tool NAME VALUE  python, pytest (the Python that can import it), node (its version); others: how to call them
#                       where no Python can import pytest: home (the user's), python_version
#   @@ pytest NAME      where no Python can import pytest: a test file that only pytest can run
#   @@ unittest NAME    likewise: a test file that unittest may run
#   @@ text NAME        the beginning of a file; its lines follow, each after a space
#   @@ end              nothing is missing

LC_ALL=C
export LC_ALL
umask 077

echo '@@ look 1'
printf '@@ folder %s\n' "$(pwd -P | tr '\n' ' ')"
if [ ! -r . ]; then
    echo 'the folder cannot be read' >&2
    exit 1
fi
base=${TMPDIR:-/tmp}
place=$base/rsmcp-tests-$1
# What runs left whose results nobody asked for.
find "$base" -maxdepth 1 -name 'rsmcp-tests-run-*' -type d -user "$(id -u)" -mtime +2 -exec rm -rf {} + 2>/dev/null
mkdir "$place" || exit 1
: >"$place/mark" || exit 1
pwd -P >"$place/folder"
printf '@@ place %s\n' "$place"

if [ -n "${2:-}" ]; then
    printf '%s\n' "$2" >"$place/plan"
    echo '@@ end'
    exit 0
fi

# Names in the folder itself, and tests in the folders where tests usually are.
find . -maxdepth 1 \( -type f -o -type l \) \( \
    -name '*.ini' -o -name '*.toml' -o -name 'setup.cfg' -o -name 'conftest.py' -o -name 'test*.py' -o -name '*_test.py' \
    -o -name 'package.json' -o -name 'vitest.config.*' -o -name 'jest.config.*' -o -name '*[._-]test.*js' \
    -o -name 'test-*.*js' -o -name 'test.*js' -o -name 'go.mod' -o -name 'go.work' -o -name '*_test.go' \
    -o -name 'pom.xml' -o -name 'mvnw' -o -name 'build.gradle*' -o -name 'gradlew' -o -name '*akefile' \) 2>/dev/null |
    head -n 200 | sed 's/^/@@ name /'
for folder in tests test src __tests__; do
    [ ! -d "$folder" ] || find "$folder" -maxdepth 4 -name node_modules -prune -o -type f \( \
        -name 'test*.py' -o -name '*_test.py' -o -name 'conftest.py' -o -path 'tests/__init__.py' -o -name '*_test.go' \
        -o -name '*[._-]test.*js' -o -path 'test/*.*js' -o -path 'tests/*.*js' \) -print 2>/dev/null |
        head -n 200 | sed 's/^/@@ name /'
done

# tool NAME CANDIDATE...: the first that is there.
tool() {
    name=$1
    shift
    for candidate; do
        if command -v "$candidate" >/dev/null 2>&1; then
            printf '@@ tool %s %s\n' "$name" "$candidate"
            return
        fi
    done
}

tool cargo cargo "${HOME:-}/.cargo/bin/cargo"
tool go go /usr/local/go/bin/go
tool npm npm
tool vitest ./node_modules/.bin/vitest
tool jest ./node_modules/.bin/jest
tool mvn mvn
tool gradle gradle
tool make make
if command -v node >/dev/null 2>&1; then
    printf '@@ tool node %s\n' "$(node --version 2>/dev/null </dev/null)"
fi
set -- ./.venv/bin/python ./venv/bin/python ./env/bin/python python3 python
tool python "$@"
has_pytest=
for python; do
    # Whether it could be imported; importing it takes ten times as long.
    if command -v "$python" >/dev/null 2>&1 && "$python" -c '
import importlib.util, sys
sys.exit(importlib.util.find_spec("pytest") is None)' </dev/null >/dev/null 2>&1; then
        printf '@@ tool pytest %s\n' "$python"
        has_pytest=yes
        break
    fi
done

# Test files wherever pytest would look for them. Only pytest can run functions, classes that are no TestCase, and what
# imports it; two names are those of functions in suites of unittest. Any Python will do, 2.7 too.
# shellcheck disable=SC2016
sort_tests='
import os, re, sys
by_pytest = re.compile(
    b"^(?:async +)?def +test(?!_(?:main|suite)\\()|^(?:import|from) +pytest|^class +Test\\w*(?:\\((?:object)?\\))?:", re.M)
by_unittest = re.compile(b"^class +(?:Test|.*\\(.*TestCase)", re.M)
told = []
def tell(word, path):
    if b"\n" not in path:
        told.append(b"@@ " + word + b" " + path + b"\n")
for folder, folders, files in os.walk(b"."):
    folders[:] = sorted(name for name in folders if name[:1] != b"." and name not in (b"node_modules", b"site-packages")
                        and not os.path.exists(os.path.join(folder, name, b"pyvenv.cfg")))
    for name in files:
        path = os.path.join(folder, name)
        if name == b"__init__.py" and folder != b".":
            tell(b"name", path)
        elif re.match(b"(?:test_.*|.*_test)\\.py$", name) and os.path.isfile(path) and os.access(path, os.R_OK):
            with open(path, "rb") as file:
                text = file.read(1000000)
            if by_pytest.search(text):
                tell(b"pytest", path)
            elif by_unittest.search(text):
                tell(b"unittest", path)
    if len(told) > 5000:
        break
told.insert(0, b"@@ tool python_version " + b".".join(str(number).encode() for number in sys.version_info[:2]) + b"\n")
getattr(sys.stdout, "buffer", sys.stdout).write(b"".join(told))'
if [ -z "$has_pytest" ]; then
    printf '@@ tool home %s\n' "${HOME:-}"
    for python; do
        if command -v "$python" >/dev/null 2>&1; then
            "$python" -c "$sort_tests" </dev/null 2>/dev/null
            break
        fi
    done
fi

for file in pyproject.toml setup.cfg tox.ini package.json GNUmakefile makefile Makefile; do
    if [ -f "$file" ] && [ -r "$file" ]; then
        printf '@@ text %s\n' "$file"
        # The echo ends a last line that has no end.
        { head -c 100000 "$file"; echo; } | sed 's/^/ /'
    fi
done
echo '@@ end'

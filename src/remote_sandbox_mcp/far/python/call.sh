#!/bin/sh
# Starts a Python with the first program of a call (far/boot.py), which reads its order from standard input. POSIX sh.
# $1: the Python that was asked for (a name, a program, or the folder of an environment), or nothing for the usual one.
# $2: the first program. Then the order as base64, in pieces: one argument has a limit of length.
# Prints nothing of its own on standard output. Ends with 127 and a sentence on standard error if there is no such Python.

asked=$1 boot=$2
shift 2

# is_program PATH: whether it can be run; sets `python`.
is_program() {
	[ -f "$1" ] && [ -x "$1" ] && python=$1
}

# An environment's folder, or the program itself.
of_path() {
	is_program "$1/bin/python" || is_program "$1/bin/python3" || is_program "$1"
}

# A program of that name, or an environment of conda's with it.
of_name() {
	python=$(command -v "$1") && is_program "$python" && return
	for root in "${CONDA_EXE%/bin/conda}" "$HOME/.conda" "$HOME/miniforge3" "$HOME/miniconda3" "$HOME/mambaforge" \
		"$HOME/anaconda3" "$HOME/micromamba" /opt/conda /opt/miniconda3; do
		[ -n "$root" ] && is_program "$root/envs/$1/bin/python" && return
	done
	# A folder of that name, such as venv.
	[ -d "$1" ] && of_path "./$1"
}

# Where it is though the PATH does not say so.
usual() {
	for root in /usr /usr/local "${CONDA_EXE%/bin/conda}" "$HOME/miniforge3" "$HOME/miniconda3" /opt/conda; do
		[ -n "$root" ] && is_program "$root/bin/python3" && return
	done
}

find_python() {
	# shellcheck disable=SC2088 # a path as the caller wrote it
	case $asked in
	'') [ -n "${VIRTUAL_ENV-}" ] && of_path "$VIRTUAL_ENV" || of_name python3 || of_name python || usual ;;
	'~/'*) of_path "$HOME/${asked#'~/'}" ;;
	*/*) of_path "$asked" ;;
	*) of_name "$asked" ;;
	esac
}

find_python || {
	echo "there is no Python ${asked:-3} here" >&2
	exit 127
}
IFS=
exec "$python" -IS -c "$boot" "$python" <<END
$*
END

#!/bin/sh
# Files into and out of a sandbox as one tar archive. POSIX sh, find, and the tar of GNU, busybox or BSD.
#   sh -c THIS sh TOKEN VERB WORDS...
#   look PATH               kind
#   receive PATH            a private folder in this one, which is made where it is missing: holding
#   unpack HOLDING          the archives in it, files-* and then folders-*, each in parts, and modes-*, if any; not into
#                           the folder around it at first, but then each entry at once, where no link is followed:
#                           problem, finished
#   pack PATH MOST NAMES    all but what has one of these names, at most so many bytes and one more: kind, and for a
#                           folder or a file holding, size, and left_out: lines, those of the names that were found
#   remove FOLDERS          what this token's other verbs have made in these folders, or where archives are packed
# PATH is absolute or begins with a dot, at the folder where commands begin.
#
# Answers are lines of TOKEN, a word and a value in base64, among what else a shell may print:
#   kind dir, file, other or missing; lacking PROGRAM; complaint TEXT: it could not, and the error is at its end;
#   problem PATH, a line break, REASON: of one entry. What find and tar could not read they say on standard error.

LC_ALL=C
# The archive is the caller's own, and is unpacked into an empty folder: links may lead where they like.
EXTRACT_UNSAFE_SYMLINKS=1
export LC_ALL EXTRACT_UNSAFE_SYMLINKS
unset TAR_OPTIONS POSIXLY_CORRECT
token=$1 verb=$2
shift 2

tell() {
	printf '%s %s %s\n' "$token" "$1" "$(printf %s "$2" | base64 | tr -d '\n')"
}

fail() {
	tell complaint "$1"
	exit
}

# tell_kind PATH: sets `kind`.
tell_kind() {
	if ! command -v tar >/dev/null; then
		tell lacking tar
		exit
	fi
	if [ -d "$1" ]; then
		kind=dir
	elif [ -f "$1" ]; then
		kind='file'
	elif [ -e "$1" ] || [ -L "$1" ]; then
		kind=other
	else
		kind=missing
	fi
	tell kind "$kind"
}

look() {
	tell_kind "$1"
}

# What others could not remove, a day ago and more.
sweep() {
	find "$1/." -maxdepth 1 -name '.remote-sandbox-archive-*' -mmin +1440 -exec rm -rf {} + >/dev/null 2>&1
}

receive() {
	complaint=$({ mkdir -p "$1" && cd "$1"; } 2>&1) || fail "$complaint"
	cd "$1" || exit
	sweep .
	complaint=$(mkdir -m 700 ".remote-sandbox-$token" 2>&1) || fail "$complaint"
	# A substitution loses line breaks at its end, but not before a last letter.
	here=$(pwd -P && echo .)
	tell holding "${here%??}/.remote-sandbox-$token"
}

unpack() {
	cd "$1" || fail "$1: No such file or directory"
	mkdir tree
	# Files get the modes that they have in the archive; nobody else can see them here.
	umask 0
	for name in files folders; do
		complaint=$(cat "$name"-* | (cd tree && tar -xf -) 2>&1) || fail "$complaint"
		rm -f "$name"-*
	done
	# The tar of busybox changes the mode of a folder that is there already for root alone. Others have done it.
	if [ -e modes-000000 ]; then
		cat modes-* | (cd tree && xargs -0 -n 2 chmod) 2>/dev/null
		rm -f modes-*
	fi
	merge tree .. 0
	tell finished ''
}

is_folder() {
	[ -d "$1" ] && [ ! -L "$1" ]
}

# merge FROM TO DEPTH: in a shell of its own, because it calls itself.
merge() (
	for entry in "$1"/* "$1"/.[!.]* "$1"/..?*; do
		if is_folder "$entry" && is_folder "$2/${entry##*/}"; then
			merge_folder "$entry" "$2/${entry##*/}" "$3"
		elif [ -e "$entry" ] || [ -L "$entry" ]; then
			put "$entry" "$2/${entry##*/}"
		fi
	done
)

merge_folder() {
	mode=$(stat -c %a "$1")
	touch -r "$1" "time-$3"
	chmod u+rwx "$1" "$2" 2>/dev/null
	merge "$1" "$2" "$(($3 + 1))"
	complaint=$({ chmod "$mode" "$2" && touch -r "time-$3" "$2"; } 2>&1) || problem "$2" "$complaint"
}

put() {
	if is_folder "$2"; then
		rmdir "$2" 2>/dev/null || {
			problem "$2" 'a folder that is not empty is in the way'
			return
		}
	elif is_folder "$1" || [ -d "$2" ]; then
		rm -f "$2"
	fi
	mode=''
	if is_folder "$1"; then
		# One that its owner may not write to cannot be moved.
		mode=$(stat -c %a "$1")
		chmod u+rwx "$1"
	fi
	if ! complaint=$(mv -f "$1" "$2" 2>&1); then
		problem "$2" "$complaint"
	elif [ -n "$mode" ]; then
		chmod "$mode" "$2"
	fi
}

problem() {
	tell problem "${1#../}
${2##*: }"
}

pack() {
	path=$1 most=$2
	shift 2
	tell_kind "$path"
	case $kind in
	dir | file) ;;
	*) return ;;
	esac
	umask 077
	for folder in /tmp /var/tmp "${HOME:-/}" /dev/shm; do
		holding=$folder/.remote-sandbox-$token
		complaint=$(mkdir -m 700 "$holding" 2>&1) && break
	done
	[ -d "$holding" ] || fail "$complaint"
	sweep "$folder"
	tell holding "$holding"
	for name; do
		shift
		set -- "$@" -o -name "$name"
	done
	[ "$kind" = 'file' ] || tell left_out "$(left_out "$@")"
	"pack_$kind" "$@" | head -c "$((most + 1))" >"$holding/archive"
	tell size "$(wc -c <"$holding/archive")"
}

left_out() {
	cd "$path" && find . \( -name '.remote-sandbox-*' "$@" \) -prune -print 2>/dev/null | sed 's|.*/||' | sort -u
}

# A link that was named is followed.
pack_file() {
	real=$(readlink -f "$path" && echo .)
	real=${real%??}
	cd "${real%/*}/" && tar -cf - "./${real##*/}"
}

# Not every tar can leave something out, nor read a list of names; several archives may follow each other.
pack_dir() {
	cd "$path" || return
	if tar --no-recursion -cf - . >/dev/null 2>&1; then
		find . \( -name '.remote-sandbox-*' "$@" \) -prune -o -print0 | xargs -0 tar --no-recursion -cf -
	else
		tar -cf - .
	fi
}

remove() {
	for folder in "$@" /tmp /var/tmp "${HOME:-/}" /dev/shm; do
		holding=$folder/.remote-sandbox-$token
		if [ -d "$holding" ]; then
			chmod -R u+rwx "$holding" 2>/dev/null
			rm -rf "$holding"
		fi
	done
}

"$verb" "$@"

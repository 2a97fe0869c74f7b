#!/bin/sh
# What the programs for containers without Python share. POSIX sh with coreutils, findutils and grep, or with busybox.
#
# The near side has a shell evaluate this, container_runs.sh or container_files.sh, and a last line that calls main. What
# is asked comes in variables, never as source. Names begin with rs_: what the container exports reaches the commands.
#   RSM_PROGRAM  all of this text
#   RSM_VERB     the function to call
#   RSM_CODED    which of the other variables (without RSM_) are written as `printf %b` reads them
# Answers are lines of a word and a value; what may hold anything is in base64. The last line is `over`, which the shell
# prints when it exits: an answer without it was cut short.

coded() {
	base64 | tr -d '\n'
}

# tell WORD TEXT: text of any kind.
tell() {
	printf '%s %s\n' "$1" "$(printf %s "$2" | coded)"
}

main() {
	for rs_name in ${RSM_CODED-}; do
		eval "rs_value=\$RSM_$rs_name"
		# A substitution loses line breaks at its end, but not before a last letter.
		rs_value=$(printf '%b.' "$rs_value")
		eval "RSM_$rs_name=\${rs_value%.}"
	done
	RSM_CODED=
	"$RSM_VERB" "$@"
}

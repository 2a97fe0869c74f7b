# Completes remote-sandbox-mcp in fish. Names are asked of the program itself: see cli/completion.py.
function __remote_sandbox_mcp
    set -l words (commandline -opc)
    for line in ($words[1] __complete $words[2..-1] (commandline -ct) 2>/dev/null)
        if test "$line" = :files
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
complete -c remote-sandbox-mcp -f -a '(__remote_sandbox_mcp)'

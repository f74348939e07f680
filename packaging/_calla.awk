# Completion for zsh from the rows of `calla --help-table`; see table.awk.
function quoted(text,    parts, count, i, out) {
    count = split(text, parts, "'")
    out = "'" parts[1]
    for (i = 2; i <= count; i++)
        out = out "'\\''" parts[i]
    return out "'"
}

function print_options(c, indent,    i, spec) {
    for (i = 1; i <= options[c]; i++) {
        spec = "*--" option[c, i] (argument[c, i] == "" ? "" : "=") \
            "[" escaped(help[c, i], "[]:\\", "\\") "]"
        if (argument[c, i] != "")
            spec = spec ":" argument[c, i] ":" \
                (values[c, i] != "" ? "(" values[c, i] ")" : takes_file(argument[c, i]) ? "_files" : "")
        print indent quoted(spec) " \\"
    }
}

END {
    print "#compdef calla\n# made by packaging/_calla.awk"
    print "_calla()\n{"
    print "    local -a commands\n    commands=("
    for (c = 1; c <= n; c++)
        print "        " quoted(name[c] ":" escaped(summary[c], ":\\", "\\"))
    print "    )"
    print "    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then"
    print "        _describe command commands\n        return\n    fi"
    print "    case $words[2] in"
    for (c = 1; c <= n; c++) {
        print "    " name[c] ")\n        _arguments \\"
        print_options(c, "            ")
        print "            '*:file:_files'\n        ;;"
    }
    print "    *)\n        _arguments \\"
    print_options(0, "            ")
    print "            '*:argument:()'\n        ;;"
    print "    esac\n}\n_calla \"$@\""
}

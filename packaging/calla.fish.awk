# Completion for fish from the rows of `calla --help-table`; see table.awk.
function quoted(text) {
    return "'" escaped(text, "'\\", "\\") "'"
}

END {
    print "# made by packaging/calla.fish.awk"
    for (c = 0; c <= n; c++) {
        where = c == 0 ? "__fish_use_subcommand" : "__fish_seen_subcommand_from " name[c]
        if (c > 0)
            print "complete -c calla -n __fish_use_subcommand -f -a " name[c] " -d " quoted(summary[c])
        for (i = 1; i <= options[c]; i++) {
            kind = argument[c, i] == "" ? "" : takes_file(argument[c, i]) ? " -r -F" : " -x"
            if (values[c, i] != "")
                kind = kind " -a " quoted(values[c, i])
            print "complete -c calla -n " quoted(where) " -l " option[c, i] kind " -d " quoted(help[c, i])
        }
    }
}

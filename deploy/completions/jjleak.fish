# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_jjleak_global_optspecs
    string join \n p/pid= n/name= system-wide follow max-processes= c/command= z/min-size= Z/max-size= O/obj= S/symbols-prefix= allocators= entry-and-return mmap= refresh-perf-map o/older= s/sample-rate= sample-bytes= C/combined-only threads a/show-allocs t/trace max-live= max-stacks= frame-buffer= settle= outstanding verdicts T/top= sort= format= out= by= max-overhead= estimate baseline= strict v/verbose h/help V/version
end

function __fish_jjleak_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_jjleak_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_jjleak_using_subcommand
    set -l cmd (__fish_jjleak_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c jjleak -n "__fish_jjleak_needs_command" -s p -l pid -d 'Attach to the process with this PID; can be given several times' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -s n -l name -d 'Attach to every process whose name, or whose executable\'s path, matches, also to those that begin later' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l max-processes -d 'Most processes at a time with --follow, --name and --system-wide; each takes 49 KiB' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -s c -l command -d 'Start this command, as the user who runs jjleak; quoted as in a shell, run without one' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -s z -l min-size -d 'Account only allocations of at least this many bytes' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -s Z -l max-size -d 'Account only allocations of at most this many bytes' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -s O -l obj -d 'Profile the allocation functions of this file only: its path as the process maps it, or its name' -r -F
complete -c jjleak -n "__fish_jjleak_needs_command" -s S -l symbols-prefix -d 'Profile functions with this prefix, too: those of malloc(3) with it in front' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l allocators -d 'Profile the functions that this table names, too; can be given several times (docs/allocators.md)' -r -F
complete -c jjleak -n "__fish_jjleak_needs_command" -l mmap -d 'Account also mappings that no allocation call makes: anonymous memory (mmap, mremap, brk) unless it is said otherwise' -r -f -a "anonymous\t''
files\t''
all\t''"
complete -c jjleak -n "__fish_jjleak_needs_command" -s o -l older -d 'Show only allocations that are at least this old, in milliseconds' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -s s -l sample-rate -d 'Take one allocation in N, at random; figures become estimates' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l sample-bytes -d 'Take one allocation in so many allocated bytes, large ones rather than small ones; figures become estimates' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l max-live -d 'Live blocks that find room, 40 to 70 bytes each' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l max-stacks -d 'Different stacks that find room, 50 to 100 bytes each [default: 40000; four times that where processes are followed, or threads told apart]' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l frame-buffer -d 'Bytes of frames of new stacks that can wait for jjleak to look at them, rounded up to a power of two [default: 4194304; four times that where processes are followed, or threads told apart]' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l settle -d 'Do not judge allocations that are younger than this: by what is older, leaks are told from what is only held for a while. A process is judged when it has been watched for four times as long' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -s T -l top -d 'Number of stacks, or of verdicts, in text reports [default: 10]' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l sort -d 'Order of the stacks: size (live bytes), count (live allocations), growth (live bytes since the last report) or age (of the oldest live allocation) [default: size]' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l format -d 'What to write: text, json, svg, html, pprof, collapsed' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l out -d 'Where files go: a folder (existing, or ending in /), a file name, a device or a pipe [default: jjleak-PID.* here]' -r -F
complete -c jjleak -n "__fish_jjleak_needs_command" -l by -d 'What flame graphs and collapsed stacks show: bytes, objects, or both' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l max-overhead -d 'Keep what profiling costs the process below this, in per cent of the CPU time that it uses itself; figures become estimates' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l baseline -d 'Leave out what this saved profile (a pprof file) of an earlier run of the program holds, stack by stack' -r -F
complete -c jjleak -n "__fish_jjleak_needs_command" -l system-wide -d 'Attach to every process, also to those that begin later'
complete -c jjleak -n "__fish_jjleak_needs_command" -l follow -d 'Account children, too, each in books of its own'
complete -c jjleak -n "__fish_jjleak_needs_command" -l entry-and-return -d 'Probe the C library\'s malloc at its entry and its return, also where one probe inside is proven to do (docs/overhead.md)'
complete -c jjleak -n "__fish_jjleak_needs_command" -l refresh-perf-map -d 'Ask JVMs whose code jjleak cannot name to write a perf map (JDK 17 and later), as jcmd does'
complete -c jjleak -n "__fish_jjleak_needs_command" -s C -l combined-only -d 'Have the kernel sum up what lives of each stack: reports are fast with many live blocks, and know no ages'
complete -c jjleak -n "__fish_jjleak_needs_command" -l threads -d 'Tell threads apart: each stack stands below the thread that allocated; takes more stacks (--max-stacks)'
complete -c jjleak -n "__fish_jjleak_needs_command" -s a -l show-allocs -d 'List the live blocks of each stack, the 100 largest at most'
complete -c jjleak -n "__fish_jjleak_needs_command" -s t -l trace -d 'Print each allocation and free as it happens, and a report only at the end'
complete -c jjleak -n "__fish_jjleak_needs_command" -l outstanding -d 'Text reports list the stacks with outstanding allocations, as bcc\'s memleak does, instead of verdicts; so they do with -a, -C, -o, -s, -t, -T, -z, -Z and --sort'
complete -c jjleak -n "__fish_jjleak_needs_command" -l verdicts -d 'Text reports give verdicts, also with options by which they list stacks; with --outstanding, both'
complete -c jjleak -n "__fish_jjleak_needs_command" -l estimate -d 'Account nothing, but count calls for INTERVAL seconds, and say what exact profiling would cost the process'
complete -c jjleak -n "__fish_jjleak_needs_command" -l strict -d 'End with exit code 5 when anything was lost'
complete -c jjleak -n "__fish_jjleak_needs_command" -s v -l verbose -d 'Say more on stderr; twice: also messages of the kernel side'
complete -c jjleak -n "__fish_jjleak_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_needs_command" -s V -l version -d 'Print version'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "top" -d 'Watch what lives, live: a view of processes and call sites that is renewed every second'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "report" -d 'Show saved profiles (pprof files), jjleak\'s own or another tool\'s'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "diff" -d 'Compare two saved profiles (pprof files): what has grown, shrunk, come and gone'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "doctor" -d 'Say what jjleak can tell of a process on this host, and what would let it tell more'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "daemon" -d 'Watch processes, profile those that grow, and keep what is found'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "completions" -d 'Print a script that has a shell complete jjleak\'s arguments'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "manual" -d 'Write man pages and completions for all shells into a folder, for packages'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s p -l pid -d 'Attach to the process with this PID; can be given several times' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s n -l name -d 'Attach to every process whose name, or whose executable\'s path, matches, also to those that begin later' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l max-processes -d 'Most processes at a time with --follow, --name and --system-wide; each takes 49 KiB' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s c -l command -d 'Start this command, as the user who runs jjleak; quoted as in a shell, run without one' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s z -l min-size -d 'Account only allocations of at least this many bytes' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s Z -l max-size -d 'Account only allocations of at most this many bytes' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s O -l obj -d 'Profile the allocation functions of this file only: its path as the process maps it, or its name' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s S -l symbols-prefix -d 'Profile functions with this prefix, too: those of malloc(3) with it in front' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l allocators -d 'Profile the functions that this table names, too; can be given several times (docs/allocators.md)' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l mmap -d 'Account also mappings that no allocation call makes: anonymous memory (mmap, mremap, brk) unless it is said otherwise' -r -f -a "anonymous\t''
files\t''
all\t''"
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s o -l older -d 'Show only allocations that are at least this old, in milliseconds' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s s -l sample-rate -d 'Take one allocation in N, at random; figures become estimates' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l sample-bytes -d 'Take one allocation in so many allocated bytes, large ones rather than small ones; figures become estimates' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l max-live -d 'Live blocks that find room, 40 to 70 bytes each' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l max-stacks -d 'Different stacks that find room, 50 to 100 bytes each [default: 40000; four times that where processes are followed, or threads told apart]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l frame-buffer -d 'Bytes of frames of new stacks that can wait for jjleak to look at them, rounded up to a power of two [default: 4194304; four times that where processes are followed, or threads told apart]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l settle -d 'Do not judge allocations that are younger than this: by what is older, leaks are told from what is only held for a while. A process is judged when it has been watched for four times as long' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s T -l top -d 'Number of stacks, or of verdicts, in text reports [default: 10]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l report-sort -d 'Order of the stacks in reports: size, count, growth or age' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l format -d 'What to write at the end: text, json, svg, html, pprof, collapsed' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l out -d 'Where files go: a folder (existing, or ending in /), a file name, a device or a pipe [default: jjleak-PID.* here]' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l by -d 'What flame graphs and collapsed stacks show: bytes, objects, or both' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l max-overhead -d 'Keep what profiling costs the process below this, in per cent of the CPU time that it uses itself; figures become estimates' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l baseline -d 'Leave out what this saved profile (a pprof file) of an earlier run of the program holds, stack by stack' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l sort -d 'First order of the rows: verdict, size (live bytes), count (live allocations), growth (since the look before), rate (of growth) or age (of the oldest live allocation)' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l system-wide -d 'Attach to every process, also to those that begin later'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l follow -d 'Account children, too, each in books of its own'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l entry-and-return -d 'Probe the C library\'s malloc at its entry and its return, also where one probe inside is proven to do (docs/overhead.md)'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l refresh-perf-map -d 'Ask JVMs whose code jjleak cannot name to write a perf map (JDK 17 and later), as jcmd does'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s C -l combined-only -d 'Have the kernel sum up what lives of each stack: reports are fast with many live blocks, and know no ages'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l threads -d 'Tell threads apart: each stack stands below the thread that allocated; takes more stacks (--max-stacks)'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s a -l show-allocs -d 'List the live blocks of each stack, the 100 largest at most'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s t -l trace -d 'Print each allocation and free as it happens, and a report only at the end'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l outstanding -d 'Text reports list the stacks with outstanding allocations, as bcc\'s memleak does, instead of verdicts; so they do with -a, -C, -o, -s, -t, -T, -z, -Z and --sort'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l verdicts -d 'Text reports give verdicts, also with options by which they list stacks; with --outstanding, both'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l estimate -d 'Account nothing, but count calls for INTERVAL seconds, and say what exact profiling would cost the process'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l strict -d 'End with exit code 5 when anything was lost'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s v -l verbose -d 'Say more on stderr; twice: also messages of the kernel side'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s V -l version -d 'Print version'
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l focus -d 'Show only stacks with a frame whose function, source file or module matches' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l ignore -d 'Leave out stacks with a frame whose function, source file or module matches' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l kind -d 'Show only frames of these kinds (native, java, jvm, kernel, unknown), and only stacks that have any' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -s T -l top -d 'Number of stacks, or of verdicts, in text [default: 10]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l sort -d 'Order of the stacks: size (live bytes), count (live allocations), growth (live bytes since the report before) or age (of the oldest live allocation) [default: size]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l format -d 'What to write: text, json, svg, html, pprof, collapsed' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l out -d 'Where files go: a folder (existing, or ending in /), a file name, a device or a pipe [default: jjleak-PID.* here]' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l by -d 'What flame graphs and collapsed stacks show: bytes, objects, or both [default: bytes, if the profile has any]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l threads -d 'Tell threads apart, in profiles that were recorded with --threads: each stack stands below its thread'
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l inverted -d 'Begin flame graphs and collapsed stacks with the allocation function, and merge what it is called by'
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l outstanding -d 'Text lists the stacks with outstanding allocations instead of verdicts, as live reports do; so it does with -T and --sort, and, beside verdicts, when a part is chosen'
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l verdicts -d 'Text gives verdicts, also with options by which it lists stacks; with --outstanding, both'
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l focus -d 'Show only stacks with a frame whose function, source file or module matches' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l ignore -d 'Leave out stacks with a frame whose function, source file or module matches' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l kind -d 'Show only frames of these kinds (native, java, jvm, kernel, unknown), and only stacks that have any' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -s T -l top -d 'Number of stacks in text' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l format -d 'What to write: text, json, svg' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l out -d 'Where files go: a folder (existing, or ending in /), a file name, a device or a pipe [default: jjleak.diff.* here]' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l by -d 'What flame graphs show: bytes, objects, or both [default: bytes, if the profiles have any]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l normalize -d 'Multiply the figures before, as if both had run for as long'
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l ignore-lines -d 'Lines make no difference, as between versions of a program'
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l inverted -d 'Begin the flame graph with the allocation function, and merge what it is called by'
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_using_subcommand doctor" -s p -l pid -d 'The process; without one, only the host is looked at' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_using_subcommand daemon" -l config -d 'The configuration, a file of TOML; without the file of this name, all defaults' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand daemon" -l set -d 'Set a key instead of what the configuration says; can be given several times' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand daemon" -l check-config -d 'Only say whether the configuration is right'
complete -c jjleak -n "__fish_jjleak_using_subcommand daemon" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_using_subcommand completions" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_using_subcommand manual" -s h -l help -d 'Print help'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff doctor daemon completions manual help" -f -a "top" -d 'Watch what lives, live: a view of processes and call sites that is renewed every second'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff doctor daemon completions manual help" -f -a "report" -d 'Show saved profiles (pprof files), jjleak\'s own or another tool\'s'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff doctor daemon completions manual help" -f -a "diff" -d 'Compare two saved profiles (pprof files): what has grown, shrunk, come and gone'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff doctor daemon completions manual help" -f -a "doctor" -d 'Say what jjleak can tell of a process on this host, and what would let it tell more'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff doctor daemon completions manual help" -f -a "daemon" -d 'Watch processes, profile those that grow, and keep what is found'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff doctor daemon completions manual help" -f -a "completions" -d 'Print a script that has a shell complete jjleak\'s arguments'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff doctor daemon completions manual help" -f -a "manual" -d 'Write man pages and completions for all shells into a folder, for packages'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff doctor daemon completions manual help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'

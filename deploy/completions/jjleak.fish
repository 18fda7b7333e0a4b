# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_jjleak_global_optspecs
    string join \n p/pid= n/name= system-wide follow max-processes= c/command= z/min-size= Z/max-size= O/obj= S/symbols-prefix= allocators= entry-and-return mmap= refresh-perf-map o/older= s/sample-rate= sample-bytes= sampled load C/combined-only threads a/show-allocs t/trace max-live= max-stacks= frame-buffer= max-rows= settle= outstanding verdicts full app= skip= sort= T/top= format= out= nodefraction= edgefraction= maxnodes= by= max-overhead= estimate baseline= strict v/verbose kernel-btf= h/help V/version
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
complete -c jjleak -n "__fish_jjleak_needs_command" -s n -l name -d 'Attach to every process whose name or executable path matches, including processes that start later' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l max-processes -d 'Maximum number of processes at a time with --follow, --name and --system-wide; 49 KiB each' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -s c -l command -d 'Start this command, as the user who runs jjleak; quoted as in a shell, but no shell runs it' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -s z -l min-size -d 'Count only allocations of at least this many bytes' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -s Z -l max-size -d 'Count only allocations of at most this many bytes' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -s O -l obj -d 'Profile only the allocation functions of this file: its name, or its path as the process maps it' -r -F
complete -c jjleak -n "__fish_jjleak_needs_command" -s S -l symbols-prefix -d 'Also profile functions named like those of malloc(3), with this prefix in front' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l allocators -d 'Also profile the functions listed in this table; can be given several times (docs/allocators.md)' -r -F
complete -c jjleak -n "__fish_jjleak_needs_command" -l mmap -d 'Also count mappings made outside allocation functions (mmap, mremap, brk): anonymous memory unless KIND is given' -r -f -a "anonymous\t''
files\t''
all\t''"
complete -c jjleak -n "__fish_jjleak_needs_command" -s o -l older -d 'Show only allocations that are at least this old, in milliseconds' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -s s -l sample-rate -d 'Sample one allocation in N at random; figures become estimates' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l sample-bytes -d 'Sample one allocation in this many allocated bytes, preferring large allocations; figures become estimates' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l max-live -d 'Maximum number of tracked live blocks, 40 to 70 bytes each' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l max-stacks -d 'Maximum number of distinct stacks with live blocks, 100 to 200 bytes each; stacks without leave the table before it fills up, and keep their totals, unless --max-overhead is given' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l frame-buffer -d 'Size in bytes of the buffer for the frames of new stacks, rounded up to a power of two [default: 4194304; twice that with --follow, --name, --system-wide or --threads]' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l max-rows -d 'Maximum number of unwind rows, 8 bytes each, allocated as code is mapped [default: as many as fill 1/64 of the memory, from 4194304 to 33554432]' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l settle -d 'Minimum age of allocations for verdicts: older ones distinguish leaks from memory that is only held for a while. A process gets verdicts once it has been watched for four times as long' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l app -d 'Treat functions, source files and modules that match as the application\'s, even if they belong to a known library' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l skip -d 'Treat functions, source files and modules that match as a library\'s: a finding names the application\'s function that is the nearest to the allocation' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l sort -d 'Order of the stacks: size (live bytes), count (live allocations), growth (live bytes since the last report) or age (of the oldest live allocation) [default: size]' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -s T -l top -d 'Number of stacks or verdicts in text reports [default: 10]' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l format -d 'Output formats: text, json, svg, html, pprof, collapsed, dot, graph' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l out -d 'Destination of files: a folder (existing, or created if it ends in /), a file name, a device or a pipe, or - for stdout [default: ./jjleak-PID.*]' -r -F
complete -c jjleak -n "__fish_jjleak_needs_command" -l nodefraction -d 'Smallest share of all memory of a function in call graphs (--format dot) [default: 0.005]' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l edgefraction -d 'Smallest share of all memory of a call in call graphs [default: 0.001]' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l maxnodes -d 'Maximum number of functions in call graphs [default: 80]' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l by -d 'Values in flame graphs, call graphs and collapsed stacks: bytes, objects, or both [default: bytes]' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l max-overhead -d 'Limit the cost of profiling to this percentage of the CPU time that the process itself uses; figures become estimates' -r
complete -c jjleak -n "__fish_jjleak_needs_command" -l baseline -d 'Subtract this saved profile (a pprof file) of an earlier run of the program, stack by stack' -r -F
complete -c jjleak -n "__fish_jjleak_needs_command" -l kernel-btf -d 'Type information (BTF) of exactly the running kernel, where /sys/kernel/btf is hidden: raw, or a vmlinux that has it' -r -F
complete -c jjleak -n "__fish_jjleak_needs_command" -l system-wide -d 'Attach to every process, including processes that start later'
complete -c jjleak -n "__fish_jjleak_needs_command" -l follow -d 'Follow child processes too, with separate figures for each'
complete -c jjleak -n "__fish_jjleak_needs_command" -l entry-and-return -d 'Probe the C library\'s malloc at entry and return, even where one probe inside it is proven sufficient (docs/overhead.md)'
complete -c jjleak -n "__fish_jjleak_needs_command" -l refresh-perf-map -d 'Request perf maps from JVMs whose code jjleak cannot name (JDK 17 and later), as jcmd does'
complete -c jjleak -n "__fish_jjleak_needs_command" -l sampled -d 'Use the samples that the program draws itself and announces at probes (SDT); figures become estimates'
complete -c jjleak -n "__fish_jjleak_needs_command" -l load -d 'Make a running JVM load the library that samples malloc: it stays until the JVM ends'
complete -c jjleak -n "__fish_jjleak_needs_command" -s C -l combined-only -d 'Sum live allocations per stack in the kernel: reports stay fast with many live blocks, but have no ages'
complete -c jjleak -n "__fish_jjleak_needs_command" -l threads -d 'Separate stacks by thread: the root of each stack is the thread that allocated; needs more stacks (--max-stacks)'
complete -c jjleak -n "__fish_jjleak_needs_command" -s a -l show-allocs -d 'List the live blocks of each stack, at most the 100 largest'
complete -c jjleak -n "__fish_jjleak_needs_command" -s t -l trace -d 'Print each allocation and free as it happens, and a report only at the end'
complete -c jjleak -n "__fish_jjleak_needs_command" -l outstanding -d 'List the stacks with outstanding allocations in text reports, as bcc\'s memleak does, instead of verdicts; implied by -a, -C, -o, -s, -t, -T, -z, -Z and --sort'
complete -c jjleak -n "__fish_jjleak_needs_command" -l verdicts -d 'Give verdicts in text reports even with options that list stacks; with --outstanding, give both'
complete -c jjleak -n "__fish_jjleak_needs_command" -l full -d 'Show all evidence and all frames in text reports, which otherwise fit on a screen'
complete -c jjleak -n "__fish_jjleak_needs_command" -l estimate -d 'Only count calls for INTERVAL seconds, and predict what exact profiling would cost the process'
complete -c jjleak -n "__fish_jjleak_needs_command" -l strict -d 'Exit with code 5 if anything was lost'
complete -c jjleak -n "__fish_jjleak_needs_command" -s v -l verbose -d 'Print more messages to stderr; if given twice, also those of the BPF programs'
complete -c jjleak -n "__fish_jjleak_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_needs_command" -s V -l version -d 'Print version'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "top" -d 'Show a live view of processes and call sites, refreshed every second'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "report" -d 'Show saved profiles (pprof files) of jjleak or of another tool'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "diff" -d 'Compare two saved profiles (pprof files): which stacks have grown or shrunk, are new or gone'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "memory" -d 'Show what the resident memory of a process is used for, and what grows'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "growth" -d 'Show which stacks make memory resident'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "heap" -d 'Show who allocates in Java heaps, by class and call path'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "doctor" -d 'Report what a profile of a process on this host will show, and how to make it show more'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "daemon" -d 'Watch processes, profile those that grow, and keep the profiles and findings'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "self-test" -d 'Check what works on this host, in a few seconds, with a profile of a program that leaks'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "completions" -d 'Print a script for shell completion of jjleak\'s arguments'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "manual" -d 'Write man pages and completions for all shells into a folder, for packages'
complete -c jjleak -n "__fish_jjleak_needs_command" -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s p -l pid -d 'Attach to the process with this PID; can be given several times' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s n -l name -d 'Attach to every process whose name or executable path matches, including processes that start later' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l max-processes -d 'Maximum number of processes at a time with --follow, --name and --system-wide; 49 KiB each' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s c -l command -d 'Start this command, as the user who runs jjleak; quoted as in a shell, but no shell runs it' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s z -l min-size -d 'Count only allocations of at least this many bytes' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s Z -l max-size -d 'Count only allocations of at most this many bytes' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s O -l obj -d 'Profile only the allocation functions of this file: its name, or its path as the process maps it' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s S -l symbols-prefix -d 'Also profile functions named like those of malloc(3), with this prefix in front' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l allocators -d 'Also profile the functions listed in this table; can be given several times (docs/allocators.md)' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l mmap -d 'Also count mappings made outside allocation functions (mmap, mremap, brk): anonymous memory unless KIND is given' -r -f -a "anonymous\t''
files\t''
all\t''"
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s o -l older -d 'Show only allocations that are at least this old, in milliseconds' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s s -l sample-rate -d 'Sample one allocation in N at random; figures become estimates' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l sample-bytes -d 'Sample one allocation in this many allocated bytes, preferring large allocations; figures become estimates' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l max-live -d 'Maximum number of tracked live blocks, 40 to 70 bytes each' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l max-stacks -d 'Maximum number of distinct stacks with live blocks, 100 to 200 bytes each; stacks without leave the table before it fills up, and keep their totals, unless --max-overhead is given' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l frame-buffer -d 'Size in bytes of the buffer for the frames of new stacks, rounded up to a power of two [default: 4194304; twice that with --follow, --name, --system-wide or --threads]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l max-rows -d 'Maximum number of unwind rows, 8 bytes each, allocated as code is mapped [default: as many as fill 1/64 of the memory, from 4194304 to 33554432]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l settle -d 'Minimum age of allocations for verdicts: older ones distinguish leaks from memory that is only held for a while. A process gets verdicts once it has been watched for four times as long' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l app -d 'Treat functions, source files and modules that match as the application\'s, even if they belong to a known library' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l skip -d 'Treat functions, source files and modules that match as a library\'s: a finding names the application\'s function that is the nearest to the allocation' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l report-sort -d 'Order of the stacks in reports: size, count, growth or age' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s T -l top -d 'Number of stacks or verdicts in text reports [default: 10]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l format -d 'Output formats, written at the end: text, json, svg, html, pprof, collapsed, dot, graph' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l out -d 'Destination of files: a folder (existing, or created if it ends in /), a file name, a device or a pipe, or - for stdout [default: ./jjleak-PID.*]' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l nodefraction -d 'Smallest share of all memory of a function in call graphs (--format dot) [default: 0.005]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l edgefraction -d 'Smallest share of all memory of a call in call graphs [default: 0.001]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l maxnodes -d 'Maximum number of functions in call graphs [default: 80]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l by -d 'Values in flame graphs, call graphs and collapsed stacks: bytes, objects, or both [default: bytes]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l max-overhead -d 'Limit the cost of profiling to this percentage of the CPU time that the process itself uses; figures become estimates' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l baseline -d 'Subtract this saved profile (a pprof file) of an earlier run of the program, stack by stack' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l sort -d 'Initial order of the rows: verdict, size (live bytes), count (live allocations), growth (since the previous snapshot), rate (of growth) or age (of the oldest live allocation)' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l kernel-btf -d 'Type information (BTF) of exactly the running kernel, where /sys/kernel/btf is hidden: raw, or a vmlinux that has it' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l system-wide -d 'Attach to every process, including processes that start later'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l follow -d 'Follow child processes too, with separate figures for each'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l entry-and-return -d 'Probe the C library\'s malloc at entry and return, even where one probe inside it is proven sufficient (docs/overhead.md)'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l refresh-perf-map -d 'Request perf maps from JVMs whose code jjleak cannot name (JDK 17 and later), as jcmd does'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l sampled -d 'Use the samples that the program draws itself and announces at probes (SDT); figures become estimates'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l load -d 'Make a running JVM load the library that samples malloc: it stays until the JVM ends'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s C -l combined-only -d 'Sum live allocations per stack in the kernel: reports stay fast with many live blocks, but have no ages'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l threads -d 'Separate stacks by thread: the root of each stack is the thread that allocated; needs more stacks (--max-stacks)'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s a -l show-allocs -d 'List the live blocks of each stack, at most the 100 largest'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s t -l trace -d 'Print each allocation and free as it happens, and a report only at the end'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l outstanding -d 'List the stacks with outstanding allocations in text reports, as bcc\'s memleak does, instead of verdicts; implied by -a, -C, -o, -s, -t, -T, -z, -Z and --sort'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l verdicts -d 'Give verdicts in text reports even with options that list stacks; with --outstanding, give both'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l full -d 'Show all evidence and all frames in text reports, which otherwise fit on a screen'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l estimate -d 'Only count calls for INTERVAL seconds, and predict what exact profiling would cost the process'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l strict -d 'Exit with code 5 if anything was lost'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s v -l verbose -d 'Print more messages to stderr; if given twice, also those of the BPF programs'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l growth -d 'Show pages that become resident, as jjleak growth does, instead of allocations'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -l heap -d 'Show who allocates in Java heaps, as jjleak heap does, instead of native allocations'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_using_subcommand top" -s V -l version -d 'Print version'
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l latest -d 'Show the newest of the files that match this pattern, as in \'heap.*\'' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l watch -d 'Show the files that match this pattern, and again whenever another appears, until Ctrl-C' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l base -d 'Subtract this profile, stack by stack: what came since' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l perf-map -d 'Names of generated code for heap profiles of allocators [default: perf-PID.map beside the profile]' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l sysroot -d 'Folder with the root file system of the profiled process, for names in profiles that have addresses alone' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l header -d 'Header of requests for profiles, such as \'Authorization: Bearer TOKEN\'; can be given several times' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l list -d 'Print the source lines of the functions that match, with the memory that was allocated in each, in place of a report' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l sources -d 'Folder with the sources for --list, if they are not where the program was built' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l focus -d 'Show only stacks with a frame whose function, source file or module matches' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l ignore -d 'Leave out stacks with a frame whose function, source file or module matches' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l kind -d 'Show only frames of these kinds (native, java, jvm, kernel, unknown), and only stacks that have any' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l app -d 'Treat functions, source files and modules that match as the application\'s, even if they belong to a known library' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l skip -d 'Treat functions, source files and modules that match as a library\'s: a finding names the application\'s function that is the nearest to the allocation' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l sort -d 'Order of the stacks: size (live bytes), count (live allocations), growth (live bytes since the last report) or age (of the oldest live allocation) [default: size]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -s T -l top -d 'Number of stacks or verdicts in text reports [default: 10]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l nodefraction -d 'Smallest share of all memory of a function in call graphs (--format dot) [default: 0.005]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l edgefraction -d 'Smallest share of all memory of a call in call graphs [default: 0.001]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l maxnodes -d 'Maximum number of functions in call graphs [default: 80]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l format -d 'Output formats: text, json, svg; jjleak report also writes html, pprof, collapsed and dot' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l out -d 'Destination of files: a folder (existing, or created if it ends in /), a file name, a device or a pipe, or - for stdout [default: files in this folder: jjleak-PID.*, jjleak.diff.*]' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l by -d 'Values in flame graphs and collapsed stacks: bytes, objects, or both [default: bytes, if the profile has any]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l kernel-btf -d 'Type information (BTF) of exactly the running kernel, where /sys/kernel/btf is hidden: raw, or a vmlinux that has it' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l debuginfod -d 'Ask the servers in `DEBUGINFOD_URLS` for programs and debug files that are not here, for profiles that have addresses alone'
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l merge -d 'Add up profiles, stack by stack, such as those of several instances of a service'
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l functions -d 'Distinguish frames by function only, without source lines'
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l lines -d 'Distinguish frames by source line'
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l files -d 'Distinguish frames by source file'
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l addresses -d 'Distinguish frames by address'
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l threads -d 'Separate stacks by thread, in profiles recorded with --threads: the root of each stack is the thread that allocated'
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l verdicts -d 'Give verdicts in text reports even with options that list stacks; with --outstanding, give both'
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l full -d 'Show all evidence and all frames in text reports, which otherwise fit on a screen'
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l inverted -d 'Invert flame graphs and collapsed stacks: the allocation function is the root, and its callers are merged'
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -l outstanding -d 'List the stacks with outstanding allocations in text instead of verdicts, as in live reports; implied by --sort. With only --focus, --ignore or --kind, text has both'
complete -c jjleak -n "__fish_jjleak_using_subcommand report" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l perf-map -d 'Names of generated code for heap profiles of allocators [default: perf-PID.map beside the profile]' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l sysroot -d 'Folder with the root file system of the profiled process, for names in profiles that have addresses alone' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l header -d 'Header of requests for profiles, such as \'Authorization: Bearer TOKEN\'; can be given several times' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l focus -d 'Show only stacks with a frame whose function, source file or module matches' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l ignore -d 'Leave out stacks with a frame whose function, source file or module matches' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l kind -d 'Show only frames of these kinds (native, java, jvm, kernel, unknown), and only stacks that have any' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -s T -l top -d 'Number of stacks or verdicts in text reports [default: 10]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l nodefraction -d 'Smallest share of all memory of a function in call graphs (--format dot) [default: 0.005]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l edgefraction -d 'Smallest share of all memory of a call in call graphs [default: 0.001]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l maxnodes -d 'Maximum number of functions in call graphs [default: 80]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l format -d 'Output formats: text, json, svg; jjleak report also writes html, pprof, collapsed and dot' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l out -d 'Destination of files: a folder (existing, or created if it ends in /), a file name, a device or a pipe, or - for stdout [default: files in this folder: jjleak-PID.*, jjleak.diff.*]' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l by -d 'Values in flame graphs and collapsed stacks: bytes, objects, or both [default: bytes, if the profile has any]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l kernel-btf -d 'Type information (BTF) of exactly the running kernel, where /sys/kernel/btf is hidden: raw, or a vmlinux that has it' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l normalize -d 'Scale the figures of BEFORE as if both profiles had run for the same time'
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l ignore-lines -d 'Ignore line numbers when matching stacks, for different versions of a program'
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l debuginfod -d 'Ask the servers in `DEBUGINFOD_URLS` for programs and debug files that are not here, for profiles that have addresses alone'
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l functions -d 'Distinguish frames by function only, without source lines'
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l lines -d 'Distinguish frames by source line'
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l files -d 'Distinguish frames by source file'
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l addresses -d 'Distinguish frames by address'
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -l inverted -d 'Invert flame graphs and collapsed stacks: the allocation function is the root, and its callers are merged'
complete -c jjleak -n "__fish_jjleak_using_subcommand diff" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_using_subcommand memory" -s p -l pid -d 'Process to scan' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand memory" -s n -l name -d 'Scan all processes whose name or executable\'s path matches, as a table' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand memory" -l format -d 'Format; JSON has a document for each process and report, HTML a page for the last report' -r -f -a "text\t''
json\t''
html\t''"
complete -c jjleak -n "__fish_jjleak_using_subcommand memory" -l kernel-btf -d 'Type information (BTF) of exactly the running kernel, where /sys/kernel/btf is hidden: raw, or a vmlinux that has it' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand memory" -l system-wide -d 'Scan all processes, as a table'
complete -c jjleak -n "__fish_jjleak_using_subcommand memory" -l diagnose -d 'After the last report, run the next step that it names, if that is a command of jjleak'
complete -c jjleak -n "__fish_jjleak_using_subcommand memory" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -s p -l pid -d 'Attach to the process with this PID; can be given several times' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -s n -l name -d 'Attach to every process whose name or executable path matches, including processes that start later' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l max-processes -d 'Maximum number of processes at a time with --follow, --name and --system-wide; 49 KiB each' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -s c -l command -d 'Start this command, as the user who runs jjleak; quoted as in a shell, but no shell runs it' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -s z -l min-size -d 'Count only allocations of at least this many bytes' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -s Z -l max-size -d 'Count only allocations of at most this many bytes' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -s O -l obj -d 'Profile only the allocation functions of this file: its name, or its path as the process maps it' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -s S -l symbols-prefix -d 'Also profile functions named like those of malloc(3), with this prefix in front' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l allocators -d 'Also profile the functions listed in this table; can be given several times (docs/allocators.md)' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l mmap -d 'Also count mappings made outside allocation functions (mmap, mremap, brk): anonymous memory unless KIND is given' -r -f -a "anonymous\t''
files\t''
all\t''"
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -s o -l older -d 'Show only allocations that are at least this old, in milliseconds' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -s s -l sample-rate -d 'Sample one allocation in N at random; figures become estimates' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l sample-bytes -d 'Sample one allocation in this many allocated bytes, preferring large allocations; figures become estimates' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l max-live -d 'Maximum number of tracked live blocks, 40 to 70 bytes each' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l max-stacks -d 'Maximum number of distinct stacks with live blocks, 100 to 200 bytes each; stacks without leave the table before it fills up, and keep their totals, unless --max-overhead is given' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l frame-buffer -d 'Size in bytes of the buffer for the frames of new stacks, rounded up to a power of two [default: 4194304; twice that with --follow, --name, --system-wide or --threads]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l max-rows -d 'Maximum number of unwind rows, 8 bytes each, allocated as code is mapped [default: as many as fill 1/64 of the memory, from 4194304 to 33554432]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l settle -d 'Minimum age of allocations for verdicts: older ones distinguish leaks from memory that is only held for a while. A process gets verdicts once it has been watched for four times as long' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l app -d 'Treat functions, source files and modules that match as the application\'s, even if they belong to a known library' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l skip -d 'Treat functions, source files and modules that match as a library\'s: a finding names the application\'s function that is the nearest to the allocation' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l sort -d 'Order of the stacks: size (live bytes), count (live allocations), growth (live bytes since the last report) or age (of the oldest live allocation) [default: size]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -s T -l top -d 'Number of stacks or verdicts in text reports [default: 10]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l format -d 'Output formats: text, json, svg, html, pprof, collapsed, dot, graph' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l out -d 'Destination of files: a folder (existing, or created if it ends in /), a file name, a device or a pipe, or - for stdout [default: ./jjleak-PID.*]' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l nodefraction -d 'Smallest share of all memory of a function in call graphs (--format dot) [default: 0.005]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l edgefraction -d 'Smallest share of all memory of a call in call graphs [default: 0.001]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l maxnodes -d 'Maximum number of functions in call graphs [default: 80]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l by -d 'Values in flame graphs, call graphs and collapsed stacks: bytes, objects, or both [default: bytes]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l max-overhead -d 'Limit the cost of profiling to this percentage of the CPU time that the process itself uses; figures become estimates' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l baseline -d 'Subtract this saved profile (a pprof file) of an earlier run of the program, stack by stack' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l kernel-btf -d 'Type information (BTF) of exactly the running kernel, where /sys/kernel/btf is hidden: raw, or a vmlinux that has it' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l system-wide -d 'Attach to every process, including processes that start later'
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l follow -d 'Follow child processes too, with separate figures for each'
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l entry-and-return -d 'Probe the C library\'s malloc at entry and return, even where one probe inside it is proven sufficient (docs/overhead.md)'
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l refresh-perf-map -d 'Request perf maps from JVMs whose code jjleak cannot name (JDK 17 and later), as jcmd does'
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l sampled -d 'Use the samples that the program draws itself and announces at probes (SDT); figures become estimates'
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l load -d 'Make a running JVM load the library that samples malloc: it stays until the JVM ends'
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -s C -l combined-only -d 'Sum live allocations per stack in the kernel: reports stay fast with many live blocks, but have no ages'
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l threads -d 'Separate stacks by thread: the root of each stack is the thread that allocated; needs more stacks (--max-stacks)'
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -s a -l show-allocs -d 'List the live blocks of each stack, at most the 100 largest'
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -s t -l trace -d 'Print each allocation and free as it happens, and a report only at the end'
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l outstanding -d 'List the stacks with outstanding allocations in text reports, as bcc\'s memleak does, instead of verdicts; implied by -a, -C, -o, -s, -t, -T, -z, -Z and --sort'
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l verdicts -d 'Give verdicts in text reports even with options that list stacks; with --outstanding, give both'
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l full -d 'Show all evidence and all frames in text reports, which otherwise fit on a screen'
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l estimate -d 'Only count calls for INTERVAL seconds, and predict what exact profiling would cost the process'
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -l strict -d 'Exit with code 5 if anything was lost'
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -s v -l verbose -d 'Print more messages to stderr; if given twice, also those of the BPF programs'
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_using_subcommand growth" -s V -l version -d 'Print version'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -s p -l pid -d 'Attach to the process with this PID; can be given several times' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -s n -l name -d 'Attach to every process whose name or executable path matches, including processes that start later' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l max-processes -d 'Maximum number of processes at a time with --follow, --name and --system-wide; 49 KiB each' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -s c -l command -d 'Start this command, as the user who runs jjleak; quoted as in a shell, but no shell runs it' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -s z -l min-size -d 'Count only allocations of at least this many bytes' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -s Z -l max-size -d 'Count only allocations of at most this many bytes' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -s O -l obj -d 'Profile only the allocation functions of this file: its name, or its path as the process maps it' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -s S -l symbols-prefix -d 'Also profile functions named like those of malloc(3), with this prefix in front' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l allocators -d 'Also profile the functions listed in this table; can be given several times (docs/allocators.md)' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l mmap -d 'Also count mappings made outside allocation functions (mmap, mremap, brk): anonymous memory unless KIND is given' -r -f -a "anonymous\t''
files\t''
all\t''"
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -s o -l older -d 'Show only allocations that are at least this old, in milliseconds' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -s s -l sample-rate -d 'Sample one allocation in N at random; figures become estimates' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l sample-bytes -d 'Sample one allocation in this many allocated bytes, preferring large allocations; figures become estimates' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l max-live -d 'Maximum number of tracked live blocks, 40 to 70 bytes each' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l max-stacks -d 'Maximum number of distinct stacks with live blocks, 100 to 200 bytes each; stacks without leave the table before it fills up, and keep their totals, unless --max-overhead is given' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l frame-buffer -d 'Size in bytes of the buffer for the frames of new stacks, rounded up to a power of two [default: 4194304; twice that with --follow, --name, --system-wide or --threads]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l max-rows -d 'Maximum number of unwind rows, 8 bytes each, allocated as code is mapped [default: as many as fill 1/64 of the memory, from 4194304 to 33554432]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l settle -d 'Minimum age of allocations for verdicts: older ones distinguish leaks from memory that is only held for a while. A process gets verdicts once it has been watched for four times as long' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l app -d 'Treat functions, source files and modules that match as the application\'s, even if they belong to a known library' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l skip -d 'Treat functions, source files and modules that match as a library\'s: a finding names the application\'s function that is the nearest to the allocation' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l sort -d 'Order of the stacks: size (live bytes), count (live allocations), growth (live bytes since the last report) or age (of the oldest live allocation) [default: size]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -s T -l top -d 'Number of stacks or verdicts in text reports [default: 10]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l format -d 'Output formats: text, json, svg, html, pprof, collapsed, dot, graph' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l out -d 'Destination of files: a folder (existing, or created if it ends in /), a file name, a device or a pipe, or - for stdout [default: ./jjleak-PID.*]' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l nodefraction -d 'Smallest share of all memory of a function in call graphs (--format dot) [default: 0.005]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l edgefraction -d 'Smallest share of all memory of a call in call graphs [default: 0.001]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l maxnodes -d 'Maximum number of functions in call graphs [default: 80]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l by -d 'Values in flame graphs, call graphs and collapsed stacks: bytes, objects, or both [default: bytes]' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l max-overhead -d 'Limit the cost of profiling to this percentage of the CPU time that the process itself uses; intervals become wider' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l baseline -d 'Subtract this saved profile (a pprof file) of an earlier run of the program, stack by stack' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l kernel-btf -d 'Type information (BTF) of exactly the running kernel, where /sys/kernel/btf is hidden: raw, or a vmlinux that has it' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l system-wide -d 'Attach to every process, including processes that start later'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l follow -d 'Follow child processes too, with separate figures for each'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l entry-and-return -d 'Probe the C library\'s malloc at entry and return, even where one probe inside it is proven sufficient (docs/overhead.md)'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l refresh-perf-map -d 'Request perf maps from JVMs whose code jjleak cannot name (JDK 17 and later), as jcmd does'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l sampled -d 'Use the samples that the program draws itself and announces at probes (SDT); figures become estimates'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l load -d 'Make a running JVM load the library that samples malloc: it stays until the JVM ends'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -s C -l combined-only -d 'Sum live allocations per stack in the kernel: reports stay fast with many live blocks, but have no ages'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l threads -d 'Separate stacks by thread: the root of each stack is the thread that allocated; needs more stacks (--max-stacks)'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -s a -l show-allocs -d 'List the live blocks of each stack, at most the 100 largest'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -s t -l trace -d 'Print each allocation and free as it happens, and a report only at the end'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l outstanding -d 'List the stacks with outstanding allocations in text reports, as bcc\'s memleak does, instead of verdicts; implied by -a, -C, -o, -s, -t, -T, -z, -Z and --sort'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l verdicts -d 'Give verdicts in text reports even with options that list stacks; with --outstanding, give both'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l full -d 'Show all evidence and all frames in text reports, which otherwise fit on a screen'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l estimate -d 'Only count calls for INTERVAL seconds, and predict what exact profiling would cost the process'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l strict -d 'Exit with code 5 if anything was lost'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -s v -l verbose -d 'Print more messages to stderr; if given twice, also those of the BPF programs'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -l histogram -d 'Ask the JVM for class histograms, at the beginning and with reports, and show the classes that grow. It stops for a full collection each time'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_using_subcommand heap" -s V -l version -d 'Print version'
complete -c jjleak -n "__fish_jjleak_using_subcommand doctor" -s p -l pid -d 'Process to examine; without it, only the host is examined' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand doctor" -l kernel-btf -d 'Type information (BTF) of exactly the running kernel, where /sys/kernel/btf is hidden: raw, or a vmlinux that has it' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_using_subcommand daemon" -l config -d 'Configuration file (TOML); if the default file does not exist, all keys have their defaults' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand daemon" -l set -d 'Override a key of the configuration; can be given several times' -r
complete -c jjleak -n "__fish_jjleak_using_subcommand daemon" -l kernel-btf -d 'Type information (BTF) of exactly the running kernel, where /sys/kernel/btf is hidden: raw, or a vmlinux that has it' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand daemon" -l check-config -d 'Check the configuration and exit'
complete -c jjleak -n "__fish_jjleak_using_subcommand daemon" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_using_subcommand self-test" -l format -d 'Form of the report' -r -f -a "text\t''
json\t''"
complete -c jjleak -n "__fish_jjleak_using_subcommand self-test" -l kernel-btf -d 'Type information (BTF) of exactly the running kernel, where /sys/kernel/btf is hidden: raw, or a vmlinux that has it' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand self-test" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_using_subcommand completions" -l kernel-btf -d 'Type information (BTF) of exactly the running kernel, where /sys/kernel/btf is hidden: raw, or a vmlinux that has it' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand completions" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_using_subcommand manual" -l kernel-btf -d 'Type information (BTF) of exactly the running kernel, where /sys/kernel/btf is hidden: raw, or a vmlinux that has it' -r -F
complete -c jjleak -n "__fish_jjleak_using_subcommand manual" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff memory growth heap doctor daemon self-test completions manual help" -f -a "top" -d 'Show a live view of processes and call sites, refreshed every second'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff memory growth heap doctor daemon self-test completions manual help" -f -a "report" -d 'Show saved profiles (pprof files) of jjleak or of another tool'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff memory growth heap doctor daemon self-test completions manual help" -f -a "diff" -d 'Compare two saved profiles (pprof files): which stacks have grown or shrunk, are new or gone'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff memory growth heap doctor daemon self-test completions manual help" -f -a "memory" -d 'Show what the resident memory of a process is used for, and what grows'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff memory growth heap doctor daemon self-test completions manual help" -f -a "growth" -d 'Show which stacks make memory resident'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff memory growth heap doctor daemon self-test completions manual help" -f -a "heap" -d 'Show who allocates in Java heaps, by class and call path'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff memory growth heap doctor daemon self-test completions manual help" -f -a "doctor" -d 'Report what a profile of a process on this host will show, and how to make it show more'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff memory growth heap doctor daemon self-test completions manual help" -f -a "daemon" -d 'Watch processes, profile those that grow, and keep the profiles and findings'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff memory growth heap doctor daemon self-test completions manual help" -f -a "self-test" -d 'Check what works on this host, in a few seconds, with a profile of a program that leaks'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff memory growth heap doctor daemon self-test completions manual help" -f -a "completions" -d 'Print a script for shell completion of jjleak\'s arguments'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff memory growth heap doctor daemon self-test completions manual help" -f -a "manual" -d 'Write man pages and completions for all shells into a folder, for packages'
complete -c jjleak -n "__fish_jjleak_using_subcommand help; and not __fish_seen_subcommand_from top report diff memory growth heap doctor daemon self-test completions manual help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'

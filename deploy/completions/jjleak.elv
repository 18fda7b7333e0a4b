
use builtin;
use str;

set edit:completion:arg-completer[jjleak] = {|@words|
    fn spaces {|n|
        builtin:repeat $n ' ' | str:join ''
    }
    fn cand {|text desc|
        edit:complex-candidate $text &display=$text' '(spaces (- 14 (wcswidth $text)))$desc
    }
    var command = 'jjleak'
    for word $words[1..-1] {
        if (str:has-prefix $word '-') {
            break
        }
        set command = $command';'$word
    }
    var completions = [
        &'jjleak'= {
            cand -p 'Attach to the process with this PID; can be given several times'
            cand --pid 'Attach to the process with this PID; can be given several times'
            cand -n 'Attach to every process whose name or executable path matches, including processes that start later'
            cand --name 'Attach to every process whose name or executable path matches, including processes that start later'
            cand --max-processes 'Maximum number of processes at a time with --follow, --name and --system-wide; 49 KiB each'
            cand -c 'Start this command, as the user who runs jjleak; quoted as in a shell, but no shell runs it'
            cand --command 'Start this command, as the user who runs jjleak; quoted as in a shell, but no shell runs it'
            cand -z 'Count only allocations of at least this many bytes'
            cand --min-size 'Count only allocations of at least this many bytes'
            cand -Z 'Count only allocations of at most this many bytes'
            cand --max-size 'Count only allocations of at most this many bytes'
            cand -O 'Profile only the allocation functions of this file: its name, or its path as the process maps it'
            cand --obj 'Profile only the allocation functions of this file: its name, or its path as the process maps it'
            cand -S 'Also profile functions named like those of malloc(3), with this prefix in front'
            cand --symbols-prefix 'Also profile functions named like those of malloc(3), with this prefix in front'
            cand --allocators 'Also profile the functions listed in this table; can be given several times (docs/allocators.md)'
            cand --mmap 'Also count mappings made outside allocation functions (mmap, mremap, brk): anonymous memory unless KIND is given'
            cand -o 'Show only allocations that are at least this old, in milliseconds'
            cand --older 'Show only allocations that are at least this old, in milliseconds'
            cand -s 'Sample one allocation in N at random; figures become estimates'
            cand --sample-rate 'Sample one allocation in N at random; figures become estimates'
            cand --sample-bytes 'Sample one allocation in this many allocated bytes, preferring large allocations; figures become estimates'
            cand --max-live 'Maximum number of tracked live blocks, 40 to 70 bytes each'
            cand --max-stacks 'Maximum number of distinct stacks with live blocks, 100 to 200 bytes each; stacks without leave the table before it fills up, and keep their totals, unless --max-overhead is given [default: 40000; four times that with --follow, --name, --system-wide or --threads]'
            cand --frame-buffer 'Size in bytes of the buffer for the frames of new stacks, rounded up to a power of two [default: 4194304; twice that with --follow, --name, --system-wide or --threads]'
            cand --max-rows 'Maximum number of unwind rows, 8 bytes each, allocated as code is mapped [default: as many as fill 1/64 of the memory, from 4194304 to 33554432]'
            cand --settle 'Minimum age of allocations for verdicts: older ones distinguish leaks from memory that is only held for a while. A process gets verdicts once it has been watched for four times as long'
            cand --app 'Treat functions, source files and modules that match as the application''s, even if they belong to a known library'
            cand --skip 'Treat functions, source files and modules that match as a library''s: a finding names the application''s function that is the nearest to the allocation'
            cand --sort 'Order of the stacks: size (live bytes), count (live allocations), growth (live bytes since the last report) or age (of the oldest live allocation) [default: size]'
            cand -T 'Number of stacks or verdicts in text reports [default: 10]'
            cand --top 'Number of stacks or verdicts in text reports [default: 10]'
            cand --format 'Output formats: text, json, svg, html, pprof, collapsed'
            cand --out 'Destination of files: a folder (existing, or created if it ends in /), a file name, a device or a pipe [default: ./jjleak-PID.*]'
            cand --by 'Values in flame graphs and collapsed stacks: bytes, objects, or both [default: bytes]'
            cand --max-overhead 'Limit the cost of profiling to this percentage of the CPU time that the process itself uses; figures become estimates'
            cand --baseline 'Subtract this saved profile (a pprof file) of an earlier run of the program, stack by stack'
            cand --system-wide 'Attach to every process, including processes that start later'
            cand --follow 'Follow child processes too, with separate figures for each'
            cand --entry-and-return 'Probe the C library''s malloc at entry and return, even where one probe inside it is proven sufficient (docs/overhead.md)'
            cand --refresh-perf-map 'Request perf maps from JVMs whose code jjleak cannot name (JDK 17 and later), as jcmd does'
            cand -C 'Sum live allocations per stack in the kernel: reports stay fast with many live blocks, but have no ages'
            cand --combined-only 'Sum live allocations per stack in the kernel: reports stay fast with many live blocks, but have no ages'
            cand --threads 'Separate stacks by thread: the root of each stack is the thread that allocated; needs more stacks (--max-stacks)'
            cand -a 'List the live blocks of each stack, at most the 100 largest'
            cand --show-allocs 'List the live blocks of each stack, at most the 100 largest'
            cand -t 'Print each allocation and free as it happens, and a report only at the end'
            cand --trace 'Print each allocation and free as it happens, and a report only at the end'
            cand --outstanding 'List the stacks with outstanding allocations in text reports, as bcc''s memleak does, instead of verdicts; implied by -a, -C, -o, -s, -t, -T, -z, -Z and --sort'
            cand --verdicts 'Give verdicts in text reports even with options that list stacks; with --outstanding, give both'
            cand --full 'Show all evidence and all frames in text reports, which otherwise fit on a screen'
            cand --estimate 'Only count calls for INTERVAL seconds, and predict what exact profiling would cost the process'
            cand --strict 'Exit with code 5 if anything was lost'
            cand -v 'Print more messages to stderr; if given twice, also those of the BPF programs'
            cand --verbose 'Print more messages to stderr; if given twice, also those of the BPF programs'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
            cand top 'Show a live view of processes and call sites, refreshed every second'
            cand report 'Show saved profiles (pprof files) of jjleak or of another tool'
            cand diff 'Compare two saved profiles (pprof files): which stacks have grown or shrunk, are new or gone'
            cand memory 'Show what the resident memory of a process is used for, and what grows'
            cand doctor 'Report what a profile of a process on this host will show, and how to make it show more'
            cand daemon 'Watch processes, profile those that grow, and keep the profiles and findings'
            cand completions 'Print a script for shell completion of jjleak''s arguments'
            cand manual 'Write man pages and completions for all shells into a folder, for packages'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'jjleak;top'= {
            cand -p 'Attach to the process with this PID; can be given several times'
            cand --pid 'Attach to the process with this PID; can be given several times'
            cand -n 'Attach to every process whose name or executable path matches, including processes that start later'
            cand --name 'Attach to every process whose name or executable path matches, including processes that start later'
            cand --max-processes 'Maximum number of processes at a time with --follow, --name and --system-wide; 49 KiB each'
            cand -c 'Start this command, as the user who runs jjleak; quoted as in a shell, but no shell runs it'
            cand --command 'Start this command, as the user who runs jjleak; quoted as in a shell, but no shell runs it'
            cand -z 'Count only allocations of at least this many bytes'
            cand --min-size 'Count only allocations of at least this many bytes'
            cand -Z 'Count only allocations of at most this many bytes'
            cand --max-size 'Count only allocations of at most this many bytes'
            cand -O 'Profile only the allocation functions of this file: its name, or its path as the process maps it'
            cand --obj 'Profile only the allocation functions of this file: its name, or its path as the process maps it'
            cand -S 'Also profile functions named like those of malloc(3), with this prefix in front'
            cand --symbols-prefix 'Also profile functions named like those of malloc(3), with this prefix in front'
            cand --allocators 'Also profile the functions listed in this table; can be given several times (docs/allocators.md)'
            cand --mmap 'Also count mappings made outside allocation functions (mmap, mremap, brk): anonymous memory unless KIND is given'
            cand -o 'Show only allocations that are at least this old, in milliseconds'
            cand --older 'Show only allocations that are at least this old, in milliseconds'
            cand -s 'Sample one allocation in N at random; figures become estimates'
            cand --sample-rate 'Sample one allocation in N at random; figures become estimates'
            cand --sample-bytes 'Sample one allocation in this many allocated bytes, preferring large allocations; figures become estimates'
            cand --max-live 'Maximum number of tracked live blocks, 40 to 70 bytes each'
            cand --max-stacks 'Maximum number of distinct stacks with live blocks, 100 to 200 bytes each; stacks without leave the table before it fills up, and keep their totals, unless --max-overhead is given [default: 40000; four times that with --follow, --name, --system-wide or --threads]'
            cand --frame-buffer 'Size in bytes of the buffer for the frames of new stacks, rounded up to a power of two [default: 4194304; twice that with --follow, --name, --system-wide or --threads]'
            cand --max-rows 'Maximum number of unwind rows, 8 bytes each, allocated as code is mapped [default: as many as fill 1/64 of the memory, from 4194304 to 33554432]'
            cand --settle 'Minimum age of allocations for verdicts: older ones distinguish leaks from memory that is only held for a while. A process gets verdicts once it has been watched for four times as long'
            cand --app 'Treat functions, source files and modules that match as the application''s, even if they belong to a known library'
            cand --skip 'Treat functions, source files and modules that match as a library''s: a finding names the application''s function that is the nearest to the allocation'
            cand --report-sort 'Order of the stacks in reports: size, count, growth or age'
            cand -T 'Number of stacks or verdicts in text reports [default: 10]'
            cand --top 'Number of stacks or verdicts in text reports [default: 10]'
            cand --format 'Output formats, written at the end: text, json, svg, html, pprof, collapsed'
            cand --out 'Destination of files: a folder (existing, or created if it ends in /), a file name, a device or a pipe [default: ./jjleak-PID.*]'
            cand --by 'Values in flame graphs and collapsed stacks: bytes, objects, or both [default: bytes]'
            cand --max-overhead 'Limit the cost of profiling to this percentage of the CPU time that the process itself uses; figures become estimates'
            cand --baseline 'Subtract this saved profile (a pprof file) of an earlier run of the program, stack by stack'
            cand --sort 'Initial order of the rows: verdict, size (live bytes), count (live allocations), growth (since the previous snapshot), rate (of growth) or age (of the oldest live allocation)'
            cand --system-wide 'Attach to every process, including processes that start later'
            cand --follow 'Follow child processes too, with separate figures for each'
            cand --entry-and-return 'Probe the C library''s malloc at entry and return, even where one probe inside it is proven sufficient (docs/overhead.md)'
            cand --refresh-perf-map 'Request perf maps from JVMs whose code jjleak cannot name (JDK 17 and later), as jcmd does'
            cand -C 'Sum live allocations per stack in the kernel: reports stay fast with many live blocks, but have no ages'
            cand --combined-only 'Sum live allocations per stack in the kernel: reports stay fast with many live blocks, but have no ages'
            cand --threads 'Separate stacks by thread: the root of each stack is the thread that allocated; needs more stacks (--max-stacks)'
            cand -a 'List the live blocks of each stack, at most the 100 largest'
            cand --show-allocs 'List the live blocks of each stack, at most the 100 largest'
            cand -t 'Print each allocation and free as it happens, and a report only at the end'
            cand --trace 'Print each allocation and free as it happens, and a report only at the end'
            cand --outstanding 'List the stacks with outstanding allocations in text reports, as bcc''s memleak does, instead of verdicts; implied by -a, -C, -o, -s, -t, -T, -z, -Z and --sort'
            cand --verdicts 'Give verdicts in text reports even with options that list stacks; with --outstanding, give both'
            cand --full 'Show all evidence and all frames in text reports, which otherwise fit on a screen'
            cand --estimate 'Only count calls for INTERVAL seconds, and predict what exact profiling would cost the process'
            cand --strict 'Exit with code 5 if anything was lost'
            cand -v 'Print more messages to stderr; if given twice, also those of the BPF programs'
            cand --verbose 'Print more messages to stderr; if given twice, also those of the BPF programs'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'jjleak;report'= {
            cand --focus 'Show only stacks with a frame whose function, source file or module matches'
            cand --ignore 'Leave out stacks with a frame whose function, source file or module matches'
            cand --kind 'Show only frames of these kinds (native, java, jvm, kernel, unknown), and only stacks that have any'
            cand --app 'Treat functions, source files and modules that match as the application''s, even if they belong to a known library'
            cand --skip 'Treat functions, source files and modules that match as a library''s: a finding names the application''s function that is the nearest to the allocation'
            cand --sort 'Order of the stacks: size (live bytes), count (live allocations), growth (live bytes since the last report) or age (of the oldest live allocation) [default: size]'
            cand -T 'Number of stacks or verdicts in text reports [default: 10]'
            cand --top 'Number of stacks or verdicts in text reports [default: 10]'
            cand --format 'Output formats: text, json, svg; jjleak report also writes html, pprof and collapsed'
            cand --out 'Destination of files: a folder (existing, or created if it ends in /), a file name, a device or a pipe [default: files in this folder: jjleak-PID.*, jjleak.diff.*]'
            cand --by 'Values in flame graphs and collapsed stacks: bytes, objects, or both [default: bytes, if the profile has any]'
            cand --threads 'Separate stacks by thread, in profiles recorded with --threads: the root of each stack is the thread that allocated'
            cand --verdicts 'Give verdicts in text reports even with options that list stacks; with --outstanding, give both'
            cand --full 'Show all evidence and all frames in text reports, which otherwise fit on a screen'
            cand --inverted 'Invert flame graphs and collapsed stacks: the allocation function is the root, and its callers are merged'
            cand --outstanding 'List the stacks with outstanding allocations in text instead of verdicts, as in live reports; implied by --sort. With only --focus, --ignore or --kind, text has both'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'jjleak;diff'= {
            cand --focus 'Show only stacks with a frame whose function, source file or module matches'
            cand --ignore 'Leave out stacks with a frame whose function, source file or module matches'
            cand --kind 'Show only frames of these kinds (native, java, jvm, kernel, unknown), and only stacks that have any'
            cand -T 'Number of stacks or verdicts in text reports [default: 10]'
            cand --top 'Number of stacks or verdicts in text reports [default: 10]'
            cand --format 'Output formats: text, json, svg; jjleak report also writes html, pprof and collapsed'
            cand --out 'Destination of files: a folder (existing, or created if it ends in /), a file name, a device or a pipe [default: files in this folder: jjleak-PID.*, jjleak.diff.*]'
            cand --by 'Values in flame graphs and collapsed stacks: bytes, objects, or both [default: bytes, if the profile has any]'
            cand --normalize 'Scale the figures of BEFORE as if both profiles had run for the same time'
            cand --ignore-lines 'Ignore line numbers when matching stacks, for different versions of a program'
            cand --inverted 'Invert flame graphs and collapsed stacks: the allocation function is the root, and its callers are merged'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'jjleak;memory'= {
            cand -p 'Process to scan'
            cand --pid 'Process to scan'
            cand --format 'Format'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'jjleak;doctor'= {
            cand -p 'Process to examine; without it, only the host is examined'
            cand --pid 'Process to examine; without it, only the host is examined'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'jjleak;daemon'= {
            cand --config 'Configuration file (TOML); if the default file does not exist, all keys have their defaults'
            cand --set 'Override a key of the configuration; can be given several times'
            cand --check-config 'Check the configuration and exit'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'jjleak;completions'= {
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'jjleak;manual'= {
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'jjleak;help'= {
            cand top 'Show a live view of processes and call sites, refreshed every second'
            cand report 'Show saved profiles (pprof files) of jjleak or of another tool'
            cand diff 'Compare two saved profiles (pprof files): which stacks have grown or shrunk, are new or gone'
            cand memory 'Show what the resident memory of a process is used for, and what grows'
            cand doctor 'Report what a profile of a process on this host will show, and how to make it show more'
            cand daemon 'Watch processes, profile those that grow, and keep the profiles and findings'
            cand completions 'Print a script for shell completion of jjleak''s arguments'
            cand manual 'Write man pages and completions for all shells into a folder, for packages'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'jjleak;help;top'= {
        }
        &'jjleak;help;report'= {
        }
        &'jjleak;help;diff'= {
        }
        &'jjleak;help;memory'= {
        }
        &'jjleak;help;doctor'= {
        }
        &'jjleak;help;daemon'= {
        }
        &'jjleak;help;completions'= {
        }
        &'jjleak;help;manual'= {
        }
        &'jjleak;help;help'= {
        }
    ]
    $completions[$command]
}

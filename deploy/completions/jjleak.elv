
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
            cand -n 'Attach to every process whose name, or whose executable''s path, matches, also to those that begin later'
            cand --name 'Attach to every process whose name, or whose executable''s path, matches, also to those that begin later'
            cand --max-processes 'Most processes at a time with --follow, --name and --system-wide; each takes 49 KiB'
            cand -c 'Start this command, as the user who runs jjleak; quoted as in a shell, run without one'
            cand --command 'Start this command, as the user who runs jjleak; quoted as in a shell, run without one'
            cand -z 'Account only allocations of at least this many bytes'
            cand --min-size 'Account only allocations of at least this many bytes'
            cand -Z 'Account only allocations of at most this many bytes'
            cand --max-size 'Account only allocations of at most this many bytes'
            cand -O 'Profile the allocation functions of this file only: its path as the process maps it, or its name'
            cand --obj 'Profile the allocation functions of this file only: its path as the process maps it, or its name'
            cand -S 'Profile functions with this prefix, too: those of malloc(3) with it in front'
            cand --symbols-prefix 'Profile functions with this prefix, too: those of malloc(3) with it in front'
            cand --allocators 'Profile the functions that this table names, too; can be given several times (docs/allocators.md)'
            cand --mmap 'Account also mappings that no allocation call makes: anonymous memory (mmap, mremap, brk) unless it is said otherwise'
            cand -o 'Show only allocations that are at least this old, in milliseconds'
            cand --older 'Show only allocations that are at least this old, in milliseconds'
            cand -s 'Take one allocation in N, at random; figures become estimates'
            cand --sample-rate 'Take one allocation in N, at random; figures become estimates'
            cand --sample-bytes 'Take one allocation in so many allocated bytes, large ones rather than small ones; figures become estimates'
            cand --max-live 'Live blocks that find room, 40 to 70 bytes each'
            cand --max-stacks 'Different stacks that find room, 50 to 100 bytes each [default: 40000; four times that where processes are followed, or threads told apart]'
            cand --frame-buffer 'Bytes of frames of new stacks that can wait for jjleak to look at them, rounded up to a power of two [default: 4194304; four times that where processes are followed, or threads told apart]'
            cand --settle 'Do not judge allocations that are younger than this: by what is older, leaks are told from what is only held for a while. A process is judged when it has been watched for four times as long'
            cand -T 'Number of stacks, or of verdicts, in text reports [default: 10]'
            cand --top 'Number of stacks, or of verdicts, in text reports [default: 10]'
            cand --sort 'Order of the stacks: size (live bytes), count (live allocations), growth (live bytes since the last report) or age (of the oldest live allocation) [default: size]'
            cand --format 'What to write: text, json, svg, html, pprof, collapsed'
            cand --out 'Where files go: a folder (existing, or ending in /), a file name, a device or a pipe [default: jjleak-PID.* here]'
            cand --by 'What flame graphs and collapsed stacks show: bytes, objects, or both'
            cand --max-overhead 'Keep what profiling costs the process below this, in per cent of the CPU time that it uses itself; figures become estimates'
            cand --baseline 'Leave out what this saved profile (a pprof file) of an earlier run of the program holds, stack by stack'
            cand --system-wide 'Attach to every process, also to those that begin later'
            cand --follow 'Account children, too, each in books of its own'
            cand --entry-and-return 'Probe the C library''s malloc at its entry and its return, also where one probe inside is proven to do (docs/overhead.md)'
            cand --refresh-perf-map 'Ask JVMs whose code jjleak cannot name to write a perf map (JDK 17 and later), as jcmd does'
            cand -C 'Have the kernel sum up what lives of each stack: reports are fast with many live blocks, and know no ages'
            cand --combined-only 'Have the kernel sum up what lives of each stack: reports are fast with many live blocks, and know no ages'
            cand --threads 'Tell threads apart: each stack stands below the thread that allocated; takes more stacks (--max-stacks)'
            cand -a 'List the live blocks of each stack, the 100 largest at most'
            cand --show-allocs 'List the live blocks of each stack, the 100 largest at most'
            cand -t 'Print each allocation and free as it happens, and a report only at the end'
            cand --trace 'Print each allocation and free as it happens, and a report only at the end'
            cand --outstanding 'Text reports list the stacks with outstanding allocations, as bcc''s memleak does, instead of verdicts; so they do with -a, -C, -o, -s, -t, -T, -z, -Z and --sort'
            cand --verdicts 'Text reports give verdicts, also with options by which they list stacks; with --outstanding, both'
            cand --estimate 'Account nothing, but count calls for INTERVAL seconds, and say what exact profiling would cost the process'
            cand --strict 'End with exit code 5 when anything was lost'
            cand -v 'Say more on stderr; twice: also messages of the kernel side'
            cand --verbose 'Say more on stderr; twice: also messages of the kernel side'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
            cand top 'Watch what lives, live: a view of processes and call sites that is renewed every second'
            cand report 'Show saved profiles (pprof files), jjleak''s own or another tool''s'
            cand diff 'Compare two saved profiles (pprof files): what has grown, shrunk, come and gone'
            cand doctor 'Say what jjleak can tell of a process on this host, and what would let it tell more'
            cand daemon 'Watch processes, profile those that grow, and keep what is found'
            cand completions 'Print a script that has a shell complete jjleak''s arguments'
            cand manual 'Write man pages and completions for all shells into a folder, for packages'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'jjleak;top'= {
            cand -p 'Attach to the process with this PID; can be given several times'
            cand --pid 'Attach to the process with this PID; can be given several times'
            cand -n 'Attach to every process whose name, or whose executable''s path, matches, also to those that begin later'
            cand --name 'Attach to every process whose name, or whose executable''s path, matches, also to those that begin later'
            cand --max-processes 'Most processes at a time with --follow, --name and --system-wide; each takes 49 KiB'
            cand -c 'Start this command, as the user who runs jjleak; quoted as in a shell, run without one'
            cand --command 'Start this command, as the user who runs jjleak; quoted as in a shell, run without one'
            cand -z 'Account only allocations of at least this many bytes'
            cand --min-size 'Account only allocations of at least this many bytes'
            cand -Z 'Account only allocations of at most this many bytes'
            cand --max-size 'Account only allocations of at most this many bytes'
            cand -O 'Profile the allocation functions of this file only: its path as the process maps it, or its name'
            cand --obj 'Profile the allocation functions of this file only: its path as the process maps it, or its name'
            cand -S 'Profile functions with this prefix, too: those of malloc(3) with it in front'
            cand --symbols-prefix 'Profile functions with this prefix, too: those of malloc(3) with it in front'
            cand --allocators 'Profile the functions that this table names, too; can be given several times (docs/allocators.md)'
            cand --mmap 'Account also mappings that no allocation call makes: anonymous memory (mmap, mremap, brk) unless it is said otherwise'
            cand -o 'Show only allocations that are at least this old, in milliseconds'
            cand --older 'Show only allocations that are at least this old, in milliseconds'
            cand -s 'Take one allocation in N, at random; figures become estimates'
            cand --sample-rate 'Take one allocation in N, at random; figures become estimates'
            cand --sample-bytes 'Take one allocation in so many allocated bytes, large ones rather than small ones; figures become estimates'
            cand --max-live 'Live blocks that find room, 40 to 70 bytes each'
            cand --max-stacks 'Different stacks that find room, 50 to 100 bytes each [default: 40000; four times that where processes are followed, or threads told apart]'
            cand --frame-buffer 'Bytes of frames of new stacks that can wait for jjleak to look at them, rounded up to a power of two [default: 4194304; four times that where processes are followed, or threads told apart]'
            cand --settle 'Do not judge allocations that are younger than this: by what is older, leaks are told from what is only held for a while. A process is judged when it has been watched for four times as long'
            cand -T 'Number of stacks, or of verdicts, in text reports [default: 10]'
            cand --top 'Number of stacks, or of verdicts, in text reports [default: 10]'
            cand --report-sort 'Order of the stacks in reports: size, count, growth or age'
            cand --format 'What to write at the end: text, json, svg, html, pprof, collapsed'
            cand --out 'Where files go: a folder (existing, or ending in /), a file name, a device or a pipe [default: jjleak-PID.* here]'
            cand --by 'What flame graphs and collapsed stacks show: bytes, objects, or both'
            cand --max-overhead 'Keep what profiling costs the process below this, in per cent of the CPU time that it uses itself; figures become estimates'
            cand --baseline 'Leave out what this saved profile (a pprof file) of an earlier run of the program holds, stack by stack'
            cand --sort 'First order of the rows: verdict, size (live bytes), count (live allocations), growth (since the look before), rate (of growth) or age (of the oldest live allocation)'
            cand --system-wide 'Attach to every process, also to those that begin later'
            cand --follow 'Account children, too, each in books of its own'
            cand --entry-and-return 'Probe the C library''s malloc at its entry and its return, also where one probe inside is proven to do (docs/overhead.md)'
            cand --refresh-perf-map 'Ask JVMs whose code jjleak cannot name to write a perf map (JDK 17 and later), as jcmd does'
            cand -C 'Have the kernel sum up what lives of each stack: reports are fast with many live blocks, and know no ages'
            cand --combined-only 'Have the kernel sum up what lives of each stack: reports are fast with many live blocks, and know no ages'
            cand --threads 'Tell threads apart: each stack stands below the thread that allocated; takes more stacks (--max-stacks)'
            cand -a 'List the live blocks of each stack, the 100 largest at most'
            cand --show-allocs 'List the live blocks of each stack, the 100 largest at most'
            cand -t 'Print each allocation and free as it happens, and a report only at the end'
            cand --trace 'Print each allocation and free as it happens, and a report only at the end'
            cand --outstanding 'Text reports list the stacks with outstanding allocations, as bcc''s memleak does, instead of verdicts; so they do with -a, -C, -o, -s, -t, -T, -z, -Z and --sort'
            cand --verdicts 'Text reports give verdicts, also with options by which they list stacks; with --outstanding, both'
            cand --estimate 'Account nothing, but count calls for INTERVAL seconds, and say what exact profiling would cost the process'
            cand --strict 'End with exit code 5 when anything was lost'
            cand -v 'Say more on stderr; twice: also messages of the kernel side'
            cand --verbose 'Say more on stderr; twice: also messages of the kernel side'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
        }
        &'jjleak;report'= {
            cand --focus 'Show only stacks with a frame whose function, source file or module matches'
            cand --ignore 'Leave out stacks with a frame whose function, source file or module matches'
            cand --kind 'Show only frames of these kinds (native, java, jvm, kernel, unknown), and only stacks that have any'
            cand -T 'Number of stacks, or of verdicts, in text [default: 10]'
            cand --top 'Number of stacks, or of verdicts, in text [default: 10]'
            cand --sort 'Order of the stacks: size (live bytes), count (live allocations), growth (live bytes since the report before) or age (of the oldest live allocation) [default: size]'
            cand --format 'What to write: text, json, svg, html, pprof, collapsed'
            cand --out 'Where files go: a folder (existing, or ending in /), a file name, a device or a pipe [default: jjleak-PID.* here]'
            cand --by 'What flame graphs and collapsed stacks show: bytes, objects, or both [default: bytes, if the profile has any]'
            cand --threads 'Tell threads apart, in profiles that were recorded with --threads: each stack stands below its thread'
            cand --inverted 'Begin flame graphs and collapsed stacks with the allocation function, and merge what it is called by'
            cand --outstanding 'Text lists the stacks with outstanding allocations instead of verdicts, as live reports do; so it does with -T and --sort, and, beside verdicts, when a part is chosen'
            cand --verdicts 'Text gives verdicts, also with options by which it lists stacks; with --outstanding, both'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'jjleak;diff'= {
            cand --focus 'Show only stacks with a frame whose function, source file or module matches'
            cand --ignore 'Leave out stacks with a frame whose function, source file or module matches'
            cand --kind 'Show only frames of these kinds (native, java, jvm, kernel, unknown), and only stacks that have any'
            cand -T 'Number of stacks in text'
            cand --top 'Number of stacks in text'
            cand --format 'What to write: text, json, svg'
            cand --out 'Where files go: a folder (existing, or ending in /), a file name, a device or a pipe [default: jjleak.diff.* here]'
            cand --by 'What flame graphs show: bytes, objects, or both [default: bytes, if the profiles have any]'
            cand --normalize 'Multiply the figures before, as if both had run for as long'
            cand --ignore-lines 'Lines make no difference, as between versions of a program'
            cand --inverted 'Begin the flame graph with the allocation function, and merge what it is called by'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'jjleak;doctor'= {
            cand -p 'The process; without one, only the host is looked at'
            cand --pid 'The process; without one, only the host is looked at'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'jjleak;daemon'= {
            cand --config 'The configuration, a file of TOML; without the file of this name, all defaults'
            cand --set 'Set a key instead of what the configuration says; can be given several times'
            cand --check-config 'Only say whether the configuration is right'
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
            cand top 'Watch what lives, live: a view of processes and call sites that is renewed every second'
            cand report 'Show saved profiles (pprof files), jjleak''s own or another tool''s'
            cand diff 'Compare two saved profiles (pprof files): what has grown, shrunk, come and gone'
            cand doctor 'Say what jjleak can tell of a process on this host, and what would let it tell more'
            cand daemon 'Watch processes, profile those that grow, and keep what is found'
            cand completions 'Print a script that has a shell complete jjleak''s arguments'
            cand manual 'Write man pages and completions for all shells into a folder, for packages'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'jjleak;help;top'= {
        }
        &'jjleak;help;report'= {
        }
        &'jjleak;help;diff'= {
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

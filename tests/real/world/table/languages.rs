//! Interpreters and virtual machines.

use super::{Exception, Oracle, Program, Target, debian};

pub(super) const PROGRAMS: &[Program] = &[
    Program::new(
        "python3",
        &[debian("/usr/bin/python3", "python3")],
        &["/usr/bin/python3", "-c", "import json; print(len(json.dumps(list(range(2000)))))"],
    )
    .in_tests(),
    Program::new(
        "python3, every object",
        &[debian("/usr/bin/python3", "python3")],
        &["/usr/bin/python3", "-S", "-c", "print(len([str(i) for i in range(300)]))"],
    )
    .with(&[("PYTHONMALLOC", "malloc")]),
    Program::new(
        "perl",
        &[debian("/usr/bin/perl", "perl")],
        &["/usr/bin/perl", "-e", "my %h; $h{$_} = $_ x 3 for 1 .. 2000; print scalar(keys %h), \"\\n\""],
    )
    .in_tests(),
    Program::new(
        "ruby",
        &[debian("/usr/bin/ruby", "ruby")],
        &["/usr/bin/ruby", "--disable-gems", "-e", "h = {}; 500.times { |i| h[\"k#{i}\"] = i.to_s * 3 }; puts h.size"],
    ),
    Program::new(
        "php",
        &[debian("/usr/bin/php", "php-cli")],
        &["/usr/bin/php", "-r", "$a = []; for ($i = 0; $i < 2000; $i++) $a[\"k$i\"] = json_decode(\"[$i]\"); echo count($a);"],
    )
    .but(&[Exception {
        of: Target::Live,
        why: "php loads its extensions so that they call the C library before the counter (RTLD_DEEPBIND): it misses what they free",
    }]),
    Program::new(
        "node",
        &[debian("/usr/bin/node", "nodejs")],
        &["/usr/bin/node", "-e",
          "const o = {}; for (let i = 0; i < 500; i++) o['k' + i] = JSON.parse('[' + i + ']'); console.log(Object.keys(o).length)"],
    ),
    Program::new(
        "lua",
        &[debian("/usr/bin/lua5.4", "lua5.4")],
        &["/usr/bin/lua5.4", "-e", "local t = {} for i = 1, 2000 do t[i] = 'n' .. i end print(#table.concat(t))"],
    ),
    Program::new(
        "tcl",
        &[debian("/usr/bin/tclsh", "tcl")],
        &["/usr/bin/tclsh", "list.tcl"],
    )
    .prepared(&["echo 'for {set i 0} {$i < 1000} {incr i} {lappend l \"n$i\"}; puts [llength [lsort $l]]' > list.tcl"]),
    Program::new(
        "guile",
        &[debian("/usr/bin/guile", "guile-3.0")],
        &["/usr/bin/guile", "--no-auto-compile", "-c", "(display (length (iota 1000)))"],
    ),
    Program::new(
        "ocaml",
        &[debian("/usr/bin/ocamlopt", "ocaml-nox")],
        &["{folder}/hello"],
    )
    .prepared(&[
        "echo 'let () = Printf.printf \"%d\\n\" (List.fold_left (+) 0 (List.init 50000 (fun i -> i)))' > hello.ml",
        "ocamlopt -o hello hello.ml",
    ]),
    Program::new(
        "erlang",
        &[debian("/usr/bin/erl", "erlang-base")],
        &["/usr/bin/erl", "+S", "1", "-noshell", "-eval", "io:format(\"~p~n\", [length(lists:seq(1, 1000))]), halt()."],
    ),
    Program::new(
        "java",
        &[debian("/usr/bin/java", "openjdk-17-jdk-headless")],
        &["/usr/bin/java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx64m", "-Xshare:auto", "-cp", "{folder}", "Hello"],
    )
    .prepared(&[
        "printf 'public class Hello { public static void main(String[] a) { System.out.println(\"hello\"); } }' > Hello.java",
        "javac Hello.java",
    ]),
    Program::new(
        "pandoc",
        &[debian("/usr/bin/pandoc", "pandoc")],
        &["/usr/bin/pandoc", "-f", "markdown", "-t", "html", "page.md"],
    )
    .prepared(&["for i in $(seq 20); do printf '# Head %s\\n\\nText *here*.\\n\\n' $i; done > page.md"])
    .but(&[Exception {
        of: Target::Complete,
        why: "GHC's code keeps a stack of its own and has no call frame information: stacks end where it calls C, as `no_row`",
    }]),
    Program::new(
        "chromium",
        &[debian("/usr/bin/chromium", "chromium")],
        &["/usr/bin/chromium", "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir={folder}/profile", "--dump-dom",
          "data:text/html,<p>hello"],
    )
    .compared_with(Oracle::Nobody("its own malloc comes before anything that is preloaded"))
    .but(&[
        Exception {
            of: Target::Complete,
            why: "Debian builds it with call frame information for some 0.2 % of its code: its stacks go on by frame pointers",
        },
        Exception {
            of: Target::Losses,
            why: "the first run finds its allocator when a script starts it, and says so (late_probes); some 13 of a million blocks are freed without a call of `free` or its kin: bpftrace misses the same number (missed_free)",
        },
    ]),
];

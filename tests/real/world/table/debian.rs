//! Debian's programs, unmodified.

use super::{Exception, Oracle, Package, Program, Target, debian};

const GIT: &[Package] = &[debian("/usr/bin/git", "git")];

pub(super) const PROGRAMS: &[Program] = &[
    Program::new(
        "bash",
        &[debian("/bin/bash", "bash")],
        &["/bin/bash", "-c", "a=(); for i in {1..200}; do a+=(\"$i ${i/1/one}\"); done; echo ${#a[@]}"],
    ),
    Program::new(
        "busybox-static",
        &[debian("/bin/busybox", "busybox-static")],
        &["/bin/busybox", "awk", "BEGIN { for (i = 0; i < 500; i++) a[i] = i; print length(a) }"],
    )
    .compared_with(Oracle::Nobody("nothing can be preloaded into a static program"))
    .but(&[Exception {
        of: Target::Losses,
        why: "its allocator has no symbols, and is named as the loss unfollowed_allocator",
    }])
    .in_tests(),
    Program::new(
        "cmake",
        &[debian("/usr/bin/cmake", "cmake")],
        &["/usr/bin/cmake", "-P", "list.cmake"],
    )
    .prepared(&["printf 'foreach(i RANGE 300)\\nlist(APPEND l ${i})\\nendforeach()\\nlist(LENGTH l n)\\nfile(WRITE n.txt ${n})\\n' > list.cmake"]),
    Program::new(
        "curl",
        &[debian("/usr/bin/curl", "curl")],
        &["/usr/bin/curl", "--silent", "file://{folder}/page.html"],
    )
    .prepared(&["seq 200 > page.html"]),
    Program::new(
        "emacs",
        &[debian("/usr/bin/emacs", "emacs-nox")],
        &["/usr/bin/emacs", "-Q", "--batch", "--eval", "(princ (length (make-list 1000 'a)))"],
    ),
    Program::new(
        "ffmpeg",
        &[debian("/usr/bin/ffmpeg", "ffmpeg")],
        &["/usr/bin/ffmpeg", "-nostdin", "-loglevel", "error", "-f", "lavfi", "-i",
          "testsrc=duration=0.2:size=64x64:rate=10", "-threads", "1", "-f", "rawvideo", "-y", "out.raw"],
    ),
    Program::new(
        "gawk",
        &[debian("/usr/bin/gawk", "gawk")],
        &["/usr/bin/gawk", "BEGIN { for (i = 0; i < 2000; i++) a[i \"x\"] = i; n = asorti(a, b); print n, b[7] }"],
    )
    .in_tests(),
    Program::new(
        "gdb",
        &[debian("/usr/bin/gdb", "gdb")],
        &["/usr/bin/gdb", "-nx", "-batch", "-ex", "print 6 * 7"],
    ),
    Program::new(
        "ghostscript",
        &[debian("/usr/bin/gs", "ghostscript")],
        &["/usr/bin/gs", "-q", "-dNODISPLAY", "-dBATCH", "-dNOPAUSE", "-c", "1 1 100 { = } for quit"],
    ),
    Program::new("git", GIT, &["/usr/bin/git", "log", "--stat", "--oneline"])
        .prepared(&[
            "git init -q . && git config user.name a && git config user.email a@b",
            "for i in 1 2 3 4 5 6 7 8; do seq $i 200 > f$i; git add .; git commit -qm \"number $i\"; done",
        ])
        .in_tests(),
    Program::new(
        "gpg",
        &[debian("/usr/bin/gpg", "gpg")],
        &["/usr/bin/gpg", "--homedir", "{folder}", "--print-md", "SHA256", "{folder}/text"],
    )
    .prepared(&["seq 20000 > text", "chmod 700 ."])
    .but(&[Exception {
        of: Target::Complete,
        why: "one allocation at its end is called through `__do_global_dtors_aux`, which compilers give no call frame information",
    }]),
    Program::new(
        "graphviz",
        &[debian("/usr/bin/dot", "graphviz")],
        &["/usr/bin/dot", "-Tplain", "graph.dot"],
    )
    .prepared(&["(echo 'digraph {'; for i in $(seq 30); do echo \"n$i -> n$((i * 7 % 31))\"; done; echo '}') > graph.dot"]),
    Program::new(
        "graphicsmagick",
        &[debian("/usr/bin/gm", "graphicsmagick")],
        &["/usr/bin/gm", "convert", "-size", "64x64", "xc:red", "-blur", "3", "out.png"],
    ),
    Program::new(
        "imagemagick",
        &[debian("/usr/bin/convert", "imagemagick")],
        &["/usr/bin/convert", "-size", "64x64", "gradient:red-blue", "-resize", "50%", "txt:-"],
    ),
    Program::new(
        "jq",
        &[debian("/usr/bin/jq", "jq")],
        &["/usr/bin/jq", "-n", "[range(500)] | map({key: tostring, value: .}) | from_entries | length"],
    )
    .in_tests(),
    Program::new(
        "make",
        &[debian("/usr/bin/make", "make")],
        &["/usr/bin/make", "--silent", "-f", "Makefile"],
    )
    .prepared(&["(echo 'all: '; for i in $(seq 200); do echo \"all: t$i\"; echo \"t$i: ; @:\"; done) > Makefile"]),
    Program::new(
        "openssl",
        &[debian("/usr/bin/openssl", "openssl")],
        &["/usr/bin/openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out",
          "certificate.pem", "-subj", "/CN=world"],
    ),
    Program::new(
        "rsync",
        &[debian("/usr/bin/rsync", "rsync")],
        &["/usr/bin/rsync", "--archive", "from/", "to/"],
    )
    .prepared(&["mkdir from; for i in $(seq 50); do seq $i > from/$i; done"]),
    Program::new(
        "sox",
        &[debian("/usr/bin/sox", "sox")],
        &["/usr/bin/sox", "-D", "-n", "-r", "8000", "out.wav", "synth", "0.2", "sine", "440", "reverb"],
    ),
    Program::new(
        "sqlite3",
        &[debian("/usr/bin/sqlite3", "sqlite3")],
        &["/usr/bin/sqlite3", ":memory:",
          "create table t(a, b); with recursive n(i) as (select 1 union all select i + 1 from n where i < 2000) \
           insert into t select i, hex(i) from n; select count(*), sum(length(b)) from t;"],
    )
    .in_tests(),
    Program::new(
        "tar",
        &[debian("/usr/bin/xz", "xz-utils"), debian("/usr/bin/zstd", "zstd")],
        &["/bin/sh", "-c", "tar -cf a.tar from && xz -k -f -T1 a.tar && zstd -q -f a.tar && tar -tJf a.tar.xz | wc -l"],
    )
    .prepared(&["mkdir from; for i in $(seq 50); do seq $i > from/$i; done"]),
    Program::new(
        "vim",
        &[debian("/usr/bin/vim.nox", "vim-nox")],
        &["/usr/bin/vim.nox", "-u", "NONE", "-es", "-c", "call setline(1, range(500))", "-c", "sort!", "-c",
          "write! out.txt", "-c", "quitall!"],
    ),
    Program::new(
        "xmllint",
        &[debian("/usr/bin/xmllint", "libxml2-utils")],
        &["/usr/bin/xmllint", "--format", "page.xml"],
    )
    .prepared(&["(echo '<a>'; for i in $(seq 300); do echo \"<b c='$i'>$i</b>\"; done; echo '</a>') > page.xml"]),
];

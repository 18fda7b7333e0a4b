//! Programs that are built here with third-party compilers and linkers.

use super::{Exception, Oracle, Package, Program, Target, debian};

const CLANG: &[Package] = &[debian("/usr/bin/clang", "clang"), debian("/usr/bin/ld.lld", "lld")];

const SANITIZER: &[Package] = &[
    debian("/usr/bin/clang", "clang"),
    debian("/usr/lib/llvm-14/lib/clang/14.0.6/lib/linux/libclang_rt.asan-x86_64.a", "libclang-rt-14-dev"),
];

/// A C++ program that allocates map nodes, strings, and vectors of many sizes.
const SOURCE: &str = "cat > a.cpp <<'E'\n\
    #include <cstdio>\n#include <map>\n#include <string>\n#include <vector>\n\
    int main() { std::map<std::string, std::vector<int>> m; for (int i = 0; i < 500; i++) m[std::to_string(i * 7919)].resize(i); \
    std::printf(\"%zu\\n\", m.size()); }\nE";

const HELLO_RUST: &str = "cat > a.rs <<'E'\n\
    fn main() { let mut m = std::collections::HashMap::new(); for i in 0..500u32 { m.insert(i.to_string(), vec![i; 9]); } \
    println!(\"{}\", m.len()); std::mem::forget(m); }\nE";

const GO: &str = "cat > main.go <<'E'\n\
    package main\n// #include <stdlib.h>\n// static void *leak(int n) { return malloc(n); }\nimport \"C\"\nimport \"fmt\"\n\
    func deep(n int) int { if n == 0 { for i := 1; i <= 100; i++ { C.leak(C.int(i)) }; return 0 }; return deep(n-1) + 1 }\n\
    func main() { fmt.Println(deep(5)) }\nE";

pub(super) const PROGRAMS: &[Program] = &[
    Program::new("clang", CLANG, &["/usr/bin/clang", "-O1", "-c", "a.c", "-o", "a.o"])
        .prepared(&["echo 'int f(int n) { int s = 0; for (int i = 0; i < n; i++) s += i * i; return s; }' > a.c"]),
    Program::new("linked by ld.lld", CLANG, &["{folder}/a"])
        .prepared(&[SOURCE, "clang++ -O2 -g -fuse-ld=lld -o a a.cpp"])
        .in_tests(),
    Program::new(
        "linked by mold",
        &[debian("/usr/bin/g++", "g++"), debian("/usr/bin/mold", "mold")],
        &["{folder}/a"],
    )
    .prepared(&[SOURCE, "g++ -O2 -g -fuse-ld=mold -o a a.cpp"])
    .in_tests(),
    Program::new(
        "linked by gold",
        &[debian("/usr/bin/g++", "g++"), debian("/usr/bin/ld.gold", "binutils")],
        &["{folder}/a"],
    )
    .prepared(&[SOURCE, "g++ -O2 -g -fuse-ld=gold -o a a.cpp"])
    .in_tests(),
    Program::new("linked by ld.bfd", &[debian("/usr/bin/g++", "g++")], &["{folder}/a"])
        .prepared(&[SOURCE, "g++ -O2 -g -fuse-ld=bfd -o a a.cpp"]),
    Program::new("linked by rustc", &[], &["{folder}/a"])
        .prepared(&[HELLO_RUST, "rustc -g -o a a.rs"])
        .in_tests(),
    Program::new("rustc", &[], &["{rustc}", "-g", "-o", "a", "a.rs"])
        .prepared(&[HELLO_RUST])
        .compared_with(Oracle::CounterBeside(&["rustc", "librustc_driver"])),
    Program::new("cargo build", &[], &["{cargo}", "build", "--offline", "--quiet", "--manifest-path", "hello/Cargo.toml"])
        .prepared(&["cargo init --quiet --vcs none hello"])
        .compared_with(Oracle::CounterBeside(&["rustc", "librustc_driver"]))
        .but(&[Exception {
            of: Target::Losses,
            why: "rustc ends within milliseconds: the first run finds its allocator too late, and says so; the second counts it from \
                  its first call",
        }]),
    Program::new("Go with cgo", &[debian("/usr/bin/go", "golang-go"), debian("/usr/bin/gcc", "gcc")], &["{folder}/a"])
        .prepared(&[GO, "GO111MODULE=off GOCACHE=$PWD/cache go build -o a main.go && rm -rf cache"])
        .in_tests(),
    Program::new("AddressSanitizer", SANITIZER, &["{folder}/a"])
        .prepared(&[SOURCE, "clang++ -O1 -g -fsanitize=address -o a a.cpp"])
        .with(&[("ASAN_OPTIONS", "detect_leaks=0:atexit=1")])
        .compared_with(Oracle::AddressSanitizer)
        .but(&[Exception {
            of: Target::Allocated,
            why: "while the sanitizer starts, it serves the C library's calls from a buffer that its statistics leave out",
        }]),
    Program::new("linked with musl", &[debian("/usr/bin/musl-gcc", "musl-tools")], &["{folder}/a"])
        .prepared(&[
            "echo '#include <stdlib.h>\n#include <stdio.h>\nint main(void) { for (int i = 1; i < 500; i++) if (!malloc(i)) return 1; puts(\"done\"); }' > a.c",
            "musl-gcc -O1 -g -static -o a a.c",
        ])
        .compared_with(Oracle::Nobody("nothing can be preloaded into a static program")),
];

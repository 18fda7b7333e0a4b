//! A Java program with many compiled methods.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::Result;

/// Methods per class; a class can have 65,535 constants.
const METHODS_OF_CLASS: usize = 300;

/// The running program. Killed when dropped.
pub(crate) struct Program {
    child: Child,
}

impl Program {
    /// Starts a program with this many methods, and waits until they are compiled.
    pub(crate) fn start(methods: usize) -> Result<Self> {
        let folder = compile(methods.div_ceil(METHODS_OF_CLASS))?;
        // Each method is compiled when it is first called; none is inlined.
        let options = ["-Xcomp", "-XX:TieredStopAtLevel=1", "-XX:-Inline", "-XX:ReservedCodeCacheSize=240m"];
        let mut java = Command::new("java");
        java.args(options).arg("-cp").arg(folder).arg("Main").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = Self { child: java.spawn()? };
        let mut line = String::new();
        BufReader::new(program.child.stdout.take().ok_or("no stdout")?).read_line(&mut line)?;
        if line.trim() == "ready" { Ok(program) } else { Err(format!("the program wrote {line:?}").into()) }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Content and base address of its `libjvm.so`.
    pub(crate) fn library(&self) -> Result<(Vec<u8>, u64)> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid()))?;
        let line = maps.lines().find(|line| line.ends_with("/libjvm.so")).ok_or("no libjvm.so")?;
        let begin = line.split('-').next().ok_or("no address")?;
        let path = line.split_whitespace().last().ok_or("no path")?;
        Ok((fs::read(path)?, u64::from_str_radix(begin, 16)?))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes and compiles the classes; returns their folder.
fn compile(classes: usize) -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-jvm");
    fs::create_dir_all(&folder)?;
    let mut main = String::from(
        "public class Main {\n  public static void main(String[] a) throws Exception {\n    int sum = 0;\n",
    );
    let mut sources = Vec::new();
    for class in 0..classes {
        let mut source = format!("class C{class} {{\n  static int all(int x) {{\n");
        for method in 0..METHODS_OF_CLASS {
            writeln!(source, "    x = m{method}(x);")?;
        }
        source.push_str("    return x;\n  }\n");
        for method in 0..METHODS_OF_CLASS {
            writeln!(source, "  static int m{method}(int x) {{ return x * {method} + 1; }}")?;
        }
        source.push_str("}\n");
        let path = folder.join(format!("C{class}.java"));
        fs::write(&path, source)?;
        sources.push(path);
        writeln!(main, "    sum += C{class}.all(sum);")?;
    }
    main.push_str("    System.out.println(sum == 1 ? \"\" : \"ready\");\n    System.in.read();\n  }\n}\n");
    sources.push(folder.join("Main.java"));
    fs::write(folder.join("Main.java"), main)?;
    let output = Command::new("javac").args(["-g", "-nowarn", "-d"]).arg(&folder).args(&sources).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(folder)
}

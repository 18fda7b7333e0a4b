//! Call graphs as pictures: Graphviz's `dot` draws them.

use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::thread;

/// Draws a graph in Graphviz's language as SVG. Blocks until it is drawn.
///
/// # Errors
///
/// Graphviz is not installed, or rejects the graph.
pub(super) fn svg(graph: Vec<u8>) -> io::Result<Vec<u8>> {
    let started = Command::new("dot")
        .arg("-Tsvg")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut dot = started.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(
            error.kind(),
            "Graphviz is not installed: install the package graphviz, or use --format dot",
        ),
        _ => error,
    })?;
    let mut stdin = dot.stdin.take();
    // It writes while it reads.
    let fed = thread::spawn(move || stdin.as_mut().map_or(Ok(()), |stdin| stdin.write_all(&graph)));
    let output = dot.wait_with_output()?;
    // If it stops reading early, its own message says why.
    let _ = fed.join();
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("Graphviz: {}", said.lines().next().unwrap_or("it failed"))))
}

//! A server under load.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Environment, JEMALLOC, Running, Subject, scratch};
use crate::Result;
use crate::options::Options;

/// Timeout until it listens.
const BEGIN: Duration = Duration::from_secs(20);

pub(crate) struct Redis {
    requests: usize,
}

impl Redis {
    /// Path of its socket.
    pub(crate) fn socket() -> String {
        scratch("redis.sock").display().to_string()
    }

    pub(crate) fn new(options: &Options, times: usize) -> Self {
        Self { requests: times * options.choose(10_000, 2_000) }
    }
}

impl Subject for Redis {
    fn name(&self) -> String {
        "redis-benchmark".to_owned()
    }

    fn start(&self, environment: &Environment, _waiting: &[(String, String)]) -> Result<Box<dyn Running>> {
        let socket = scratch("redis.sock");
        let _ = fs::remove_file(&socket);
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&socket)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let server = Server { process, socket, requests: self.requests };
        let begun = Instant::now();
        while !server.socket.exists() {
            if begun.elapsed() > BEGIN {
                return Err("redis-server does not listen".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Box::new(server))
    }

    /// Debian's redis-server is linked to jemalloc.
    fn allocator(&self) -> &'static Path {
        Path::new(JEMALLOC)
    }
}

struct Server {
    process: Child,
    socket: PathBuf,
    requests: usize,
}

impl Running for Server {
    fn pid(&self) -> u32 {
        self.process.id()
    }

    fn run(&mut self) -> Result<f64> {
        let begun = Instant::now();
        let status = Command::new("redis-benchmark")
            .args([
                "-t",
                "set,lpush",
                "-P",
                "16",
                "-r",
                "10000",
                "-d",
                "200",
                "--csv",
                "-n",
                &self.requests.to_string(),
            ])
            .arg("-s")
            .arg(&self.socket)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        let took = begun.elapsed();
        if status.success() {
            Ok(took.as_secs_f64())
        } else {
            Err(format!("redis-benchmark failed: {status}").into())
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&self.socket);
    }
}

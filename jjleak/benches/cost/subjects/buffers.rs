//! A JVM that allocates direct buffers.

use std::process::Command;

use super::{Environment, Running, Subject, Talker, java_classes, scratch};
use crate::Result;
use crate::options::Options;

/// Number of buffers until the code is compiled.
const WARM_UP: usize = 20_000;

pub(crate) struct Buffers {
    count: usize,
}

impl Buffers {
    pub(crate) fn new(options: &Options, times: usize) -> Result<Self> {
        java_classes("Buffers")?;
        Ok(Self { count: times * options.choose(150_000, 10_000) })
    }
}

impl Subject for Buffers {
    fn name(&self) -> String {
        "java, direct buffers".to_owned()
    }

    fn start(&self, environment: &Environment, _waiting: &[(String, String)]) -> Result<Box<dyn Running>> {
        let mut java = Command::new("java");
        java.args(["-XX:+UseSerialGC", "-cp"]).arg(scratch("bench-buffers")).arg("Buffers");
        let mut talker = Talker::start(&mut java, environment)?;
        talker.ask(&WARM_UP.to_string())?;
        Ok(Box::new(Jvm { talker, count: self.count }))
    }
}

struct Jvm {
    talker: Talker,
    count: usize,
}

impl Running for Jvm {
    fn pid(&self) -> u32 {
        self.talker.pid()
    }

    fn run(&mut self) -> Result<f64> {
        self.talker.ask(&self.count.to_string())
    }
}

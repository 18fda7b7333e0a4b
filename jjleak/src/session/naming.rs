//! Places where names for saved profiles come from.

use std::path::PathBuf;
use std::rc::Rc;

use super::Header;
use super::debuginfod::{Debuginfod, DebuginfodServers};
use crate::processes::{FileSources, FileStore};

/// Sources of names besides the files that the profile lists.
#[derive(Debug, Clone, Default)]
pub struct Naming {
    /// Perf map of the process; without one, `perf-PID.map` beside the profile.
    pub perf_map: Option<PathBuf>,
    /// Folder with the root file system of the process.
    pub sysroot: Option<PathBuf>,
    /// Headers of requests for profiles that a server has.
    pub headers: Vec<Header>,
    /// Servers to ask for files that are not here.
    pub debuginfod: Option<DebuginfodServers>,
}

impl Naming {
    /// Places of the files that profiles name.
    pub(super) fn sources(&self) -> FileSources {
        let store = |servers| Rc::new(Debuginfod::new(servers)) as Rc<dyn FileStore>;
        let store = self.debuginfod.clone().map(store);
        FileSources { root: self.sysroot.clone(), store }
    }
}

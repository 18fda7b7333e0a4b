//! Options for names in saved profiles, and for profiles that a server has.

use std::path::PathBuf;

use super::Failure;
use super::failure::USAGE;
use crate::session::{DebuginfodServers, Header, Naming, NoDebuginfod};

/// Options for names.
#[derive(Debug, clap::Args)]
pub(super) struct NamingArgs {
    /// Names of generated code for heap profiles of allocators [default: perf-PID.map beside the profile]
    #[arg(long, value_name = "FILE")]
    perf_map: Option<PathBuf>,

    /// Folder with the root file system of the profiled process, for names in profiles that have addresses alone
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,

    /// Ask the servers in `DEBUGINFOD_URLS` for programs and debug files that are not here, for profiles that have addresses alone
    #[arg(long)]
    debuginfod: bool,

    /// Header of requests for profiles, such as 'Authorization: Bearer TOKEN'; can be given several times
    #[arg(long, value_name = "NAME: VALUE", value_parser = parse_header)]
    header: Vec<Header>,
}

impl NamingArgs {
    /// Sources of names.
    pub(super) fn naming(&self) -> Result<Naming, Failure> {
        let failed = |error: NoDebuginfod| {
            let remedy = match error {
                NoDebuginfod::Servers => "set it, as in DEBUGINFOD_URLS=https://debuginfod.debian.net",
                NoDebuginfod::Folder => "set DEBUGINFOD_CACHE_PATH to a folder",
            };
            Failure::new(USAGE, format!("--debuginfod: {error}"), remedy)
        };
        let debuginfod = self.debuginfod.then(DebuginfodServers::from_environment).transpose();
        Ok(Naming {
            perf_map: self.perf_map.clone(),
            sysroot: self.sysroot.clone(),
            headers: self.header.clone(),
            debuginfod: debuginfod.map_err(failed)?,
        })
    }
}

/// Parses a header of a request.
fn parse_header(text: &str) -> Result<Header, String> {
    let (name, value) = text.split_once(':').ok_or("a header has the form 'NAME: VALUE'")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

//! Programs and debug files by build ID, from debuginfod servers.
//!
//! Requests and the folder of downloaded files are those of elfutils' client (debuginfod(8), `debuginfod_find_debuginfo(3)`), so that
//! each uses what the other has downloaded.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::NamedTempFile;

use crate::error_chain::chain;
use crate::http_client::agent;
use crate::notices::{Progress, print};
use crate::processes::{Artifact, FileStore};

/// Variable with the servers' URLs, separated by spaces.
const URLS: &str = "DEBUGINFOD_URLS";
/// Maximum time for a file.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum size of a file.
const MAX_BYTES: u64 = 8 << 30;
/// Maximum length of a build ID in hex; linkers create up to 40 digits.
const MAX_DIGITS: usize = 128;

/// Servers, and the folder of downloaded files.
#[derive(Debug, Clone)]
pub struct DebuginfodServers {
    urls: Vec<String>,
    folder: PathBuf,
}

/// Reason why no server can be asked.
#[derive(Debug, thiserror::Error)]
pub enum NoDebuginfod {
    /// The variable has no URL.
    #[error("{URLS} names no server")]
    Servers,
    /// There is no folder for what they send.
    #[error(
        "there is no folder for the files: neither DEBUGINFOD_CACHE_PATH nor XDG_CACHE_HOME nor HOME is an absolute path"
    )]
    Folder,
}

/// Files that servers have.
#[derive(Debug)]
pub(super) struct Debuginfod {
    servers: DebuginfodServers,
    /// Files that no server has.
    absent: RefCell<BTreeSet<PathBuf>>,
    /// Servers that have not answered, which are not asked again.
    failed: RefCell<BTreeSet<String>>,
}

impl DebuginfodServers {
    /// The servers and the folder that the environment names.
    pub fn from_environment() -> Result<Self, NoDebuginfod> {
        let urls = env::var(URLS).unwrap_or_default();
        let urls: Vec<_> =
            urls.split_ascii_whitespace().map(|url| url.trim_end_matches('/').to_owned()).collect();
        if urls.is_empty() {
            return Err(NoDebuginfod::Servers);
        }
        Ok(Self { urls, folder: folder().ok_or(NoDebuginfod::Folder)? })
    }
}

impl Debuginfod {
    pub(super) fn new(servers: DebuginfodServers) -> Self {
        Self { servers, absent: RefCell::default(), failed: RefCell::default() }
    }

    fn download(&self, name: &str, build_id: &str, to: &Path) -> bool {
        for url in &self.servers.urls {
            if self.failed.borrow().contains(url) {
                continue;
            }
            let progress = Progress::start(&format!("asking {url} for the {name} with build ID {build_id}"));
            let downloaded = download(&format!("{url}/buildid/{build_id}/{name}"), to);
            drop(progress);
            match downloaded {
                Ok(true) => return true,
                Ok(false) => {}
                Err(error) => {
                    print(&format!("{url} is not asked for debug files any more: {}", chain(&error)));
                    self.failed.borrow_mut().insert(url.clone());
                }
            }
        }
        false
    }
}

impl FileStore for Debuginfod {
    fn get(&self, artifact: Artifact, build_id: &str) -> Option<PathBuf> {
        // It becomes a part of a path.
        let is_hex = build_id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if build_id.is_empty() || build_id.len() > MAX_DIGITS || !is_hex {
            return None;
        }
        let build_id = build_id.to_ascii_lowercase();
        let name = match artifact {
            Artifact::Executable => "executable",
            Artifact::DebugFile => "debuginfo",
        };
        let path = self.servers.folder.join(&build_id).join(name);
        // The other client has an empty file for what no server has.
        if path.metadata().is_ok_and(|file| file.is_file() && file.len() > 0) {
            return Some(path);
        }
        if self.absent.borrow().contains(&path) {
            return None;
        }
        if self.download(name, &build_id, &path) {
            return Some(path);
        }
        self.absent.borrow_mut().insert(path);
        None
    }
}

/// Downloads a file; `false` if the server does not have it.
fn download(url: &str, to: &Path) -> io::Result<bool> {
    let response = agent(TIMEOUT).get(url).call().map_err(io::Error::other)?;
    match response.status() {
        status if status.is_success() => {}
        status if status.as_u16() == 404 => return Ok(false),
        status => return Err(io::Error::other(format!("it answers {status}"))),
    }
    let folder = to.parent().unwrap_or(to);
    fs::create_dir_all(folder)?;
    let mut file = NamedTempFile::new_in(folder)?;
    let mut body = response.into_body().into_reader().take(MAX_BYTES + 1);
    if io::copy(&mut body, &mut file)? > MAX_BYTES {
        return Err(io::Error::other(format!("the file has more than {} GiB", MAX_BYTES >> 30)));
    }
    file.persist(to).map(|_: File| true).map_err(|error| error.error)
}

/// The folder of the client's files.
fn folder() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("DEBUGINFOD_CACHE_PATH").or_else(|| {
        let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
        Some(caches?.join("debuginfod_client"))
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Answers requests with what it has for their paths, and returns the paths.
    fn server(files: &'static [(&str, &str)], requests: usize) -> (String, thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serve = move || {
            let one = |_| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                let mut request = BufReader::new(stream.try_clone().unwrap());
                request.read_line(&mut line).unwrap();
                let mut rest = String::new();
                while rest != "\r\n" {
                    rest.clear();
                    request.read_line(&mut rest).unwrap();
                }
                let path = line.split(' ').nth(1).unwrap().to_owned();
                let file = files.iter().find(|(known, _)| *known == path);
                let (status, body) = file.map_or(("404 Not Found", ""), |(_, body)| ("200 OK", *body));
                write!(
                    stream,
                    "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                )
                .unwrap();
                path
            };
            (0..requests).map(one).collect()
        };
        (url, thread::spawn(serve))
    }

    fn client(urls: Vec<String>, folder: &Path) -> Debuginfod {
        Debuginfod::new(DebuginfodServers { urls, folder: folder.to_owned() })
    }

    #[test]
    fn a_file_is_downloaded_once_and_one_that_no_server_has_is_asked_for_once() {
        let folder = tempfile::tempdir().unwrap();
        let (url, server) = server(&[("/buildid/00ff/debuginfo", "names")], 2);
        let client = client(vec![url], folder.path());
        for _ in 0..2 {
            let path = client.get(Artifact::DebugFile, "00FF").unwrap();
            assert_eq!(path, folder.path().join("00ff/debuginfo"));
            assert_eq!(fs::read(path).unwrap(), b"names");
            assert_eq!(client.get(Artifact::Executable, "00ff"), None);
        }
        assert!(client.failed.borrow().is_empty(), "it was asked once more, after its end");
        assert_eq!(server.join().unwrap(), ["/buildid/00ff/debuginfo", "/buildid/00ff/executable"]);
    }

    #[test]
    fn the_next_server_is_asked_if_one_does_not_answer() {
        let folder = tempfile::tempdir().unwrap();
        let (url, server) = server(&[("/buildid/01/executable", "code")], 1);
        let gone = "http://127.0.0.1:1".to_owned();
        let client = client(vec![gone.clone(), url], folder.path());
        assert!(client.get(Artifact::Executable, "01").is_some());
        assert!(client.failed.borrow().contains(&gone));
        server.join().unwrap();
    }

    #[test]
    fn a_build_id_leads_to_no_other_folder() {
        let folder = tempfile::tempdir().unwrap();
        let client = client(vec!["http://127.0.0.1:1".to_owned()], folder.path());
        for build_id in ["", "../../etc", &"0".repeat(MAX_DIGITS + 1)] {
            assert_eq!(client.get(Artifact::DebugFile, build_id), None);
        }
        assert!(client.failed.borrow().is_empty());
    }
}

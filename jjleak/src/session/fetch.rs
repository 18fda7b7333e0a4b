//! Requests for profiles of servers, such as a Rust service's `/debug/pprof/heap`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::http_client::agent;

/// Maximum time for a profile: some servers take it when they are asked, over half a minute.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum time in which a server on a Unix socket says nothing.
const SILENCE: Duration = Duration::from_secs(60);
/// Maximum size of the head of a response.
const MAX_HEAD_BYTES: u64 = 64 << 10;
/// Name of Unix sockets: `unix:/run/app.sock:/debug/pprof/heap`.
const UNIX: &str = "unix:";

/// A header of a request: name and value.
pub type Header = (String, String);

/// Returns true if a name is a URL or the path of a Unix socket.
#[must_use]
pub fn is_address(name: &Path) -> bool {
    ["http://", "https://", UNIX]
        .iter()
        .any(|scheme| name.as_os_str().as_encoded_bytes().starts_with(scheme.as_bytes()))
}

/// Requests a profile. The caller limits its size.
pub(super) fn get(address: &str, headers: &[Header]) -> io::Result<Box<dyn BufRead>> {
    match address.strip_prefix(UNIX) {
        Some(address) => {
            let (socket, path) = address.split_once(':').unwrap_or((address, "/"));
            from_socket(socket, path, headers)
        }
        None => from_url(address, headers),
    }
}

fn from_url(url: &str, headers: &[Header]) -> io::Result<Box<dyn BufRead>> {
    let request =
        headers.iter().fold(agent(TIMEOUT).get(url), |request, (name, value)| request.header(name, value));
    let response = request.call().map_err(io::Error::other)?;
    let status = response.status();
    if !status.is_success() {
        return Err(io::Error::other(format!("the server answers {status}")));
    }
    Ok(Box::new(BufReader::new(response.into_body().into_reader())))
}

/// Speaks HTTP/1.0: the response ends with the connection.
fn from_socket(socket: &str, path: &str, headers: &[Header]) -> io::Result<Box<dyn BufRead>> {
    let is_in_one_line = |text: &str| !text.contains(['\r', '\n']);
    if !is_in_one_line(path)
        || !headers.iter().all(|(name, value)| is_in_one_line(name) && is_in_one_line(value))
    {
        return Err(io::Error::other("a path or header has several lines"));
    }
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n")?;
    for (name, value) in headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    write!(stream, "\r\n")?;
    let mut response = BufReader::new(stream);
    let mut head = response.by_ref().take(MAX_HEAD_BYTES);
    let mut line = String::new();
    head.read_line(&mut line)?;
    let status = line.split(' ').nth(1).unwrap_or_default().to_owned();
    while line.trim_end() != "" {
        line.clear();
        if head.read_line(&mut line)? == 0 {
            return Err(io::Error::other("it does not speak HTTP"));
        }
    }
    if status != "200" {
        return Err(io::Error::other(format!("the server answers {status}")));
    }
    Ok(Box::new(response))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    fn from_server(response: &'static [u8], headers: &[Header]) -> (io::Result<Vec<u8>>, String) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let length = stream.read(&mut request).unwrap();
            let mut asked = String::from_utf8_lossy(&request[..length]).into_owned();
            while !asked.ends_with("\r\n\r\n") {
                let length = stream.read(&mut request).unwrap();
                asked.push_str(&String::from_utf8_lossy(&request[..length]));
            }
            stream.write_all(response).unwrap();
            asked
        });
        let read = get(&format!("unix:{}:/heap", socket.display()), headers).and_then(|mut body| {
            let mut bytes = Vec::new();
            body.read_to_end(&mut bytes).map(|_| bytes)
        });
        (read, server.join().unwrap())
    }

    #[test]
    fn a_profile_comes_through_a_unix_socket_with_the_headers_that_are_asked_for() {
        let token = [("Authorization".to_owned(), "Bearer x".to_owned())];
        let (read, asked) = from_server(b"HTTP/1.1 200 OK\r\nServer: s\r\n\r\nheap_v2/1\n", &token);
        assert_eq!(read.unwrap(), b"heap_v2/1\n");
        assert_eq!(asked, "GET /heap HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\r\n");
    }

    #[test]
    fn other_answers_are_errors() {
        let answer = |response| from_server(response, &[]).0.unwrap_err().to_string();
        assert_eq!(answer(b"HTTP/1.1 403 Forbidden\r\n\r\nno"), "the server answers 403");
        assert_eq!(answer(b"SSH-2.0-OpenSSH\r\n"), "it does not speak HTTP");
        let bad = [("A".to_owned(), "b\r\nC: d".to_owned())];
        assert!(get("unix:/none:/", &bad).is_err_and(|error| error.to_string().contains("several lines")));
    }

    #[test]
    fn addresses_are_no_file_names() {
        assert!(
            ["http://127.0.0.1:1/heap", "https://h/", "unix:/a:/b"]
                .into_iter()
                .all(|name| is_address(Path::new(name)))
        );
        assert!(!is_address(Path::new("/tmp/http")) && !is_address(Path::new("heap.1")));
    }
}
